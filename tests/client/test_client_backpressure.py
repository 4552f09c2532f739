"""Backpressure on a real small tmpfs: scratch never fills beyond the limit, whatever the mover and other clients do."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import running_mover, wait_until
from client_runs import check_records, client, prompts, start
from fake_server import Act, serving
from small_tmpfs import small_tmpfs

pytestmark = [pytest.mark.tmpfs, pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")]

_MIB = 1 << 20
_HIDDEN = 256  # three slots of float32: 3 kB a token


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "scratch", options="size=16m,mode=0700") as folder:
        yield folder


def _rows(count: int, *, first: int = 0) -> list[dict[str, object]]:
    return [
        {"id": f"s{i}", "input_ids": [(i * 31 + j) % 500 for j in range(100 + i % 80)]}
        for i in range(first, first + count)
    ]


def _ids(rows: list[dict[str, object]]) -> dict[str, list[int]]:
    return {str(row["id"]): row["input_ids"] for row in rows}  # type: ignore[misc]


class _Peak:
    """The highest fill of a folder's file system, as a fraction of its size, sampled all the time."""

    def __init__(self, folder: Path) -> None:
        self.value = 0.0
        self._folder = folder
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            found = os.statvfs(self._folder)
            self.value = max(self.value, 1 - found.f_bfree / found.f_blocks)

    def end(self) -> float:
        self._ended.set()
        self._thread.join()
        return self.value


def test_a_slow_and_for_a_while_stopped_mover_never_lets_scratch_fill(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(200)  # about 85 MB, five times the tmpfs
    with (
        running_mover(scratch, tmp_path / "dst", tmp_path, "--limit-rate", "8M") as mover,
        serving(scratch, hidden=_HIDDEN, chunk_size=64) as server,
    ):
        peak = _Peak(scratch)
        process = start(server, prompts(tmp_path / "p.jsonl", rows), "--mover-timeout", "60", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 60, timeout_s=60, what="sixty requests")
        mover.process.send_signal(signal.SIGSTOP)
        time.sleep(8)
        mover.process.send_signal(signal.SIGCONT)
        code = process.wait(120)
        highest = peak.end()
    text = (tmp_path / "log").read_text()
    assert code == 0, text
    assert server.no_space == 0
    assert 0.6 * 0.8 <= highest <= 0.8 + 0.01, highest
    assert "waiting for room in scratch" in text
    assert "waiting for the mover" in text
    check_records(tmp_path / "dst" / "p", _ids(rows), hidden=_HIDDEN)


def test_without_admission_scratch_does_fill_and_every_sample_is_accounted_for(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(150)
    with (
        running_mover(scratch, tmp_path / "dst", tmp_path, "--limit-rate", "4M"),
        serving(scratch, hidden=_HIDDEN, chunk_size=64) as server,
    ):
        ended = client(
            server,
            prompts(tmp_path / "p.jsonl", rows),
            "--max-retries",
            "0",
            "--mover-timeout",
            "60",
            timeout_s=120,
            environment={"HS_TEST_NO_ADMISSION": "1"},
        )
        assert server.no_space > 0
        # 4 where the mover is so late that as many requests in a row fail as the breaker allows.
        assert ended.code in (1, 4), ended.text
        assert "capture failed" in ended.text
        again = client(server, tmp_path / "p.jsonl", "--mover-timeout", "60", timeout_s=120)
    assert again.code == 0, again.text
    check_records(tmp_path / "dst" / "p", _ids(rows), hidden=_HIDDEN)


def test_two_clients_share_the_credit_and_a_third_one_dies(scratch: Path, tmp_path: Path) -> None:
    shares = {name: _rows(70, first=100 * at) for at, name in enumerate(("a", "b", "c"))}
    with (
        running_mover(scratch, tmp_path / "dst", tmp_path, "--limit-rate", "8M"),
        serving(scratch, hidden=_HIDDEN, chunk_size=64, act=lambda i, rid, t: Act(part_delay_s=0.05)) as server,
    ):
        peak = _Peak(scratch)
        started = {
            name: start(
                server, prompts(tmp_path / f"{name}.jsonl", rows), "--mover-timeout", "60", log=tmp_path / f"{name}.log"
            )
            for name, rows in shares.items()
        }
        wait_until(lambda: len(server.requests) > 60, timeout_s=60, what="sixty requests")
        started["c"].kill()
        codes = {name: started[name].wait(120) for name in ("a", "b")}
        assert client(server, tmp_path / "c.jsonl", timeout_s=120).code == 0
        highest = peak.end()
    assert codes == {"a": 0, "b": 0}, (tmp_path / "a.log").read_text() + (tmp_path / "b.log").read_text()
    assert server.no_space == 0
    assert highest <= 0.8 + 0.01, highest
    for name, rows in shares.items():
        check_records(tmp_path / "dst" / name, _ids(rows), hidden=_HIDDEN)


def test_a_record_larger_than_the_limit_is_named_and_the_others_go_on(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(5)
    rows.insert(2, {"id": "huge", "input_ids": [5] * 6000})
    with (
        running_mover(scratch, tmp_path / "dst", tmp_path),
        serving(scratch, hidden=_HIDDEN, context_length=9000) as server,
    ):
        ended = client(server, prompts(tmp_path / "p.jsonl", rows))
    assert ended.code == 1, ended.text
    assert "p.jsonl:3: failed (too large): its record needs 21,560,192 bytes" in ended.text
    del rows[2]
    check_records(tmp_path / "dst" / "p", _ids(rows), hidden=_HIDDEN)


def test_records_of_every_size_up_to_that_of_scratch_and_beyond(scratch: Path, tmp_path: Path) -> None:
    """All that can fit are done, the others named, and none of them stalls the run; the tmpfs never fills."""
    limit_tokens = int(0.8 * 16 * _MIB / (12 * _HIDDEN + 8))
    sizes = [1, 7, 60, 300, 900, 1500, 2600, 3300, limit_tokens - 60]
    too_large = [limit_tokens + 40, 5400, 7000]
    rows: list[dict[str, object]] = [
        {"id": f"s{at}", "input_ids": [(at + j) % 500 for j in range(n)]} for at, n in enumerate(sizes * 3)
    ]
    named: list[dict[str, object]] = [{"id": f"t{n}", "input_ids": [n % 500] * n} for n in too_large]
    mixed: list[Any] = [*rows, *named]
    random.Random(5).shuffle(mixed)
    with (
        running_mover(scratch, tmp_path / "dst", tmp_path),
        serving(scratch, hidden=_HIDDEN, chunk_size=1024, context_length=9000) as server,
    ):
        peak = _Peak(scratch)
        ended = client(server, prompts(tmp_path / "p.jsonl", mixed), "--mover-timeout", "90", timeout_s=200)
        highest = peak.end()
    assert ended.code == 1, ended.text
    assert ended.text.count(": failed (too large): its record needs ") == len(named)
    assert server.no_space == 0
    assert highest <= 0.8 + 0.01, highest
    check_records(tmp_path / "dst" / "p", _ids(rows), hidden=_HIDDEN)


def test_foreign_files_hold_the_client_until_they_go(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(40)
    with running_mover(scratch, tmp_path / "dst", tmp_path), serving(scratch, hidden=_HIDDEN) as server:
        foreign = scratch / "psm_somebody"
        foreign.write_bytes(b"\1" * (13 * _MIB))
        process = start(server, prompts(tmp_path / "p.jsonl", rows), log=tmp_path / "log")
        wait_until(lambda: "waiting for" in (tmp_path / "log").read_text(), timeout_s=30, what="the client to wait")
        assert not server.requests
        foreign.unlink()
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    check_records(tmp_path / "dst" / "p", _ids(rows), hidden=_HIDDEN)


def test_a_full_destination_is_waited_for(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(60)
    with (
        small_tmpfs(tmp_path / "dst", options="size=8m,mode=0700") as dst,
        running_mover(scratch, dst, tmp_path),
        serving(scratch, hidden=_HIDDEN) as server,
    ):
        file = prompts(tmp_path / "p.jsonl", rows)
        process = start(server, file, "--force", "--mover-timeout", "60", log=tmp_path / "log")
        wait_until(lambda: "waiting for" in (tmp_path / "log").read_text(), timeout_s=60, what="the client to wait")
        time.sleep(3)
        assert process.poll() is None
        os.system(f"mount -o remount,size=64m {dst}")
        assert process.wait(90) == 0, (tmp_path / "log").read_text()
        assert server.no_space == 0
        check_records(dst / "p", _ids(rows), hidden=_HIDDEN)


def test_a_removed_destination_ends_the_run_with_the_sources_kept(scratch: Path, tmp_path: Path) -> None:
    rows = _rows(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    dst = tmp_path / "dst"
    with (
        running_mover(scratch, dst, tmp_path),
        serving(scratch, hidden=_HIDDEN, act=lambda i, rid, t: Act(delay_s=0.3)) as server,
    ):
        process = start(server, file, "--concurrency", "4", "--mover-timeout", "6", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 10, timeout_s=60, what="ten requests")
        dst.rename(tmp_path / "away")
        assert process.wait(60) == 5, (tmp_path / "log").read_text()
        (tmp_path / "away").rename(dst)
        ended = client(server, file, "--mover-timeout", "60")
    assert ended.code == 0, ended.text
    check_records(dst / "p", _ids(rows), hidden=_HIDDEN)
