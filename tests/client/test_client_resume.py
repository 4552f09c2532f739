"""Resume that can be trusted: twenty kills, another order and new rows; a server that is away, or gone for good."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from chain import MoverProcess, wait_until
from client_runs import Ledgers, check_records, client, ids_of, prompts, rows_of, start
from fake_server import Act, serving
from hs_formats.ledger import Done


def stored(dataset: Path) -> dict[Path, tuple[int, int, int]]:
    """Every stored file of the dataset, and what would change if it were touched."""
    found = (path for path in (dataset / "data").rglob("*") if path.is_file() and not path.name.startswith("."))
    return {path: (path.stat().st_ino, path.stat().st_size, path.stat().st_mtime_ns) for path in found}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twenty_kills_then_another_order_and_new_rows(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(100)
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = mover.dst / "p"
    chance = random.Random(20261130)
    options = ("--concurrency", "4")
    untouched: dict[Path, tuple[int, int, int]] = {}
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.1, abandon=True)) as server:
        for kill in range(20):
            before = len(server.requests)
            process = start(server, file, *options, log=tmp_path / "log")
            moment = chance.randint(0, 6)
            wait_until(
                lambda before=before, moment=moment: len(server.requests) > before + moment,
                timeout_s=60,
                what=f"requests before kill {kill}",
                every_s=0.005,
            )
            time.sleep(chance.random() * 0.15)
            assert process.poll() is None, "the rows were to last for twenty kills"
            process.kill()
            process.wait()
            for path, state in stored(dataset).items():
                assert untouched.setdefault(path, state) == state
        rows += [{"id": f"new{i}", "input_ids": [400 + i, 3, 4]} for i in range(7)]
        chance.shuffle(rows)
        ended = client(server, prompts(file, rows), *options)
        assert ended.code == 0, ended.text
        assert len(set(server.rids)) == len(server.rids)
        assert len(server.requests) == 107 + len(server.abandoned), "only what was in flight at a kill is sent again"
        assert len(server.abandoned) <= 20 * 4
    now = stored(dataset)
    assert {path: now.get(path) for path in untouched} == untouched
    check_records(dataset, ids_of(rows))
    assert len(Ledgers.of(dataset).kinds(Done)) == 107


@pytest.mark.slow
def test_a_server_killed_at_row_30_and_back_after_20_s_costs_no_row(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(60)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.05)) as server:
        process = start(
            server,
            prompts(tmp_path / "p.jsonl", rows),
            "--concurrency",
            "4",
            "--server-timeout",
            "60",
            log=tmp_path / "log",
        )
        wait_until(lambda: len(server.requests) >= 30, timeout_s=30, what="thirty requests", every_s=0.01)
    time.sleep(20)
    with serving(mover.scratch, port=server.port) as again:
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    assert len(server.requests) + len(again.requests) <= 60 + 4
    check_records(mover.dst / "p", ids_of(rows))


def test_a_server_that_is_gone_for_good_leaves_the_rest_pending_within_the_limit(
    mover: MoverProcess, tmp_path: Path
) -> None:
    rows = rows_of(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.05)) as server:
        process = start(server, file, "--concurrency", "4", "--server-timeout", "4", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) >= 30, timeout_s=30, what="thirty requests", every_s=0.01)
    gone_s = time.monotonic()
    assert process.wait(60) == 4
    assert time.monotonic() - gone_s < 4 + 8 + 10, "the limit, one pause, and time to end"
    text = (tmp_path / "log").read_text()
    assert "has been lost for" in text
    assert "0 failed" in text
    done = len(Ledgers.of(mover.dst / "p").kinds(Done))
    assert f"{60 - done} pending" in text
    assert f"to go on   hs-client run {file}" in text
