"""One run, several servers, each with a scratch and a mover of its own, and one dataset."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import MoverProcess, running_mover, wait_until
from client_runs import Ledgers, check_records, client, prompts, start
from fake_server import Act, serving
from hs_formats.ledger import Done
from launching import free_port

Rows = list[dict[str, Any]]


def rows_of(count: int) -> Rows:
    return [{"id": f"s{i}", "input_ids": [(7 * i + j) % 300 for j in range(1, 2 + i % 40)]} for i in range(count)]


def ids_of(rows: Rows) -> dict[str, list[int]]:
    return {row["id"]: row["input_ids"] for row in rows}


@pytest.fixture
def movers(tmp_path: Path) -> Iterator[list[MoverProcess]]:
    with contextlib.ExitStack() as stack:
        found: list[MoverProcess] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir(mode=0o700)
            (tmp_path / f"log-{name}").mkdir()
            found.append(
                stack.enter_context(running_mover(tmp_path / name, tmp_path / "dst", tmp_path / f"log-{name}"))
            )
        yield found


def test_two_servers_share_the_rows_and_one_dataset_holds_them(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(80)
    slow = Act(delay_s=0.4)
    with (
        serving(movers[0].scratch, act=lambda i, rid, t: Act(delay_s=0.05)) as quick,
        serving(movers[1].scratch, act=lambda i, rid, t: slow) as other,
    ):
        file = prompts(tmp_path / "p.jsonl", rows)
        also = f"{other.url}={other.scratch}"
        ended = client(quick, file, "--server", also, "--concurrency", "4")
        assert ended.code == 0, ended.text
        assert len(quick.requests) + len(other.requests) == 80
        assert len(other.requests) >= 8
        assert len(quick.requests) > 2 * len(other.requests), "the quick one has fewer outstanding tokens"
        assert "nothing to send" in client(quick, file, "--server", also).text
    check_records(tmp_path / "dst" / "p", ids_of(rows))


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_the_rows_of_a_lost_server_go_to_the_other_one(movers: list[MoverProcess], tmp_path: Path, how: str) -> None:
    rows = rows_of(60)
    hang = Act(delay_s=60, parts=False)
    with serving(movers[0].scratch, act=lambda i, rid, t: Act(delay_s=0.1)) as good:
        with serving(
            movers[1].scratch, act=lambda i, rid, t: hang if how == "hangs" and i >= 5 else Act(delay_s=0.1)
        ) as bad:
            process = start(
                good,
                prompts(tmp_path / "p.jsonl", rows),
                "--server",
                f"{bad.url}={bad.scratch}",
                *("--concurrency", "3", "--server-timeout", "2"),
                log=tmp_path / "log",
            )
            wait_until(lambda: len(bad.requests) > 7, timeout_s=30, what="requests to both")
            if how == "hangs":
                assert process.wait(40) == 0, (tmp_path / "log").read_text()
        assert process.wait(40) == 0, (tmp_path / "log").read_text()
    text = (tmp_path / "log").read_text()
    if how == "hangs":
        assert f"warning: {bad.url} is given up, its rows go to the other servers" in text
    assert "60 done" in text
    assert "0 failed" in text
    check_records(tmp_path / "dst" / "p", ids_of(rows))


def test_a_server_that_is_away_for_a_while_is_used_again(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(120)
    with serving(movers[0].scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as good:
        with serving(movers[1].scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as gone:
            file = prompts(tmp_path / "p.jsonl", rows)
            also = ("--server", f"{gone.url}={gone.scratch}", "--concurrency", "2")
            process = start(good, file, *also, log=tmp_path / "log")
            wait_until(lambda: len(gone.requests) > 4, timeout_s=30, what="requests to both")
        before = len(good.requests)
        wait_until(lambda: len(good.requests) > before + 6, timeout_s=30, what="the other one goes on")
        with serving(movers[1].scratch, port=gone.port, act=lambda i, rid, t: Act(delay_s=0.2)) as again:
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
            assert len(again.requests) > 2
    check_records(tmp_path / "dst" / "p", ids_of(rows))
    assert len(Ledgers.of(tmp_path / "dst" / "p").kinds(Done)) == 120


def test_what_does_not_fit_together_is_refused_and_who_is_absent_left_out(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(6))
    (tmp_path / "three").mkdir(mode=0o700)
    (tmp_path / "log-three").mkdir()
    with serving(movers[0].scratch) as good:
        with serving(movers[1].scratch, boundaries=(1, 3)) as other:
            ended = client(good, file, "--server", f"{other.url}={other.scratch}")
            assert (ended.code, "capture differently: boundaries: [1, 2] and [1, 3]" in ended.text) == (3, True), (
                ended.text
            )
        elsewhere = running_mover(tmp_path / "three", tmp_path / "other-dst", tmp_path / "log-three")
        with elsewhere as mover, serving(mover.scratch) as other:
            ended = client(good, file, "--server", f"{other.url}={other.scratch}")
            assert (ended.code, "one dataset needs one destination" in ended.text) == (3, True), ended.text
        ended = client(good, file, "--server", good.url)
        assert (ended.code, "is given twice" in ended.text) == (2, True), ended.text
        absent = f"http://127.0.0.1:{free_port()}={movers[1].scratch}"
        ended = client(good, file, "--server", absent)
        assert ended.code == 0, ended.text
        assert "warning: a server is left out: no server answers at" in ended.text


def test_a_server_that_wants_a_key_says_so(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(20)
    began = time.monotonic()

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(status=401, body={"error": "Unauthorized"}) if number >= 5 else Act()

    with serving(movers[0].scratch, act=act) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "2")
        assert ended.code == 3, ended.text
        assert "wants another API key (HTTP 401: Unauthorized): put the one that it was started with into" in ended.text
        assert "HS_API_KEY" in ended.text
        assert time.monotonic() - began < 30
    with serving(movers[0].scratch) as server:
        assert client(server, tmp_path / "p.jsonl").code == 0
    check_records(tmp_path / "dst" / "p", ids_of(rows))
