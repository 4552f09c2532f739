"""A 64 MB scratch, five times as much data, a mover that is slow, stopped or has nowhere to put things: real server."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from chain import Server, launch_server, run_client, running_mover, start_client, wait_until
from checker import Reference, check_dataset
from prompt_files import write_rows
from small_tmpfs import fill, small_tmpfs
from tiny_models import tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "wide-llama"
BOUNDARIES = (1, 2, 3, 4, 5, 6, 7)
BYTES_PER_TOKEN = 8 * 512 * 4
SCRATCH_BYTES = 64 << 20
PROMPT_TOKENS = 120
HIGH = 0.8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    work = tmp_path_factory.mktemp("storage")
    with small_tmpfs(work / "scratch", options=f"size={SCRATCH_BYTES},mode=0700") as scratch:
        made, _ = launch_server(
            tiny_model(MODEL),
            scratch,
            work,
            options=["--boundaries", ",".join(map(str, BOUNDARIES))],
            sglang=["--chunked-prefill-size", "256"],
        )
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def reference(references: Callable[..., Reference]) -> Reference:
    return references(MODEL, BOUNDARIES)


def prompts_of(path: Path, data_bytes: int, *, seed: int) -> tuple[Path, int]:
    """Enough prompts for `data_bytes` of states, and how many."""
    count = -(-data_bytes // (BYTES_PER_TOKEN * PROMPT_TOKENS))
    draw = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {"id": f"r{i}", "input_ids": [draw.randrange(3, 500) for _ in range(PROMPT_TOKENS)]} for i in range(count)
    ]
    return write_rows(path, rows), count


class FillMeter:
    """Samples the fill of a file system all the time."""

    def __init__(self, folder: Path) -> None:
        self.peak = 0
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            found = os.statvfs(self._folder)
            self.peak = max(self.peak, (found.f_blocks - found.f_bfree) * found.f_frsize)


def test_five_times_the_scratch_through_a_slow_and_for_a_while_stopped_mover(
    server: Server, reference: Reference, destination: Path, tmp_path: Path
) -> None:
    prompts, count = prompts_of(tmp_path / "prompts.jsonl", 5 * SCRATCH_BYTES, seed=5)
    log = tmp_path / "client.log"
    with (
        running_mover(server.scratch, destination, tmp_path, "--limit-rate", "6M") as mover,
        FillMeter(server.scratch) as meter,
    ):
        client = start_client(prompts, server, log, "--progress-interval", "2")
        wait_until(lambda: meter.peak > 0.3 * SCRATCH_BYTES, timeout_s=120, what="a filling scratch")
        mover.process.send_signal(signal.SIGSTOP)
        time.sleep(30)
        assert client.poll() is None
        assert server.healthy()
        mover.process.send_signal(signal.SIGCONT)
        assert client.wait(timeout=600) == 0, log.read_text()
    text = log.read_text()
    assert "room in scratch" in text, text
    assert "the mover: silent" in text, text
    assert 0.6 * HIGH * SCRATCH_BYTES <= meter.peak <= HIGH * SCRATCH_BYTES, meter.peak / SCRATCH_BYTES
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-4).assert_ok(rows=count, orphans=False)


def test_without_admission_scratch_overflows_and_nothing_is_lost_silently(
    server: Server, reference: Reference, destination: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the same load does fill scratch when the client does not hold back."""
    prompts, count = prompts_of(tmp_path / "prompts.jsonl", 2 * SCRATCH_BYTES, seed=6)
    monkeypatch.setenv("HS_TEST_NO_ADMISSION", "1")
    with running_mover(server.scratch, destination, tmp_path, "--limit-rate", "4M"), FillMeter(server.scratch) as meter:
        done = run_client(prompts, server, "--max-retries", "0", timeout_s=400)
    assert meter.peak > 0.97 * SCRATCH_BYTES
    # 4 where the mover is so late that as many requests in a row fail as the breaker allows.
    assert done.returncode in (1, 4), done.stdout + done.stderr
    assert "No space left on device" in done.stdout + done.stderr
    assert server.healthy()
    monkeypatch.delenv("HS_TEST_NO_ADMISSION")
    with running_mover(server.scratch, destination, tmp_path):
        again = run_client(prompts, server, timeout_s=400)
    assert again.returncode == 0, again.stdout + again.stderr
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-4).assert_ok(rows=count)


def test_a_full_destination_is_waited_for_until_space_is_freed(
    server: Server, reference: Reference, tmp_path: Path
) -> None:
    prompts, count = prompts_of(tmp_path / "prompts.jsonl", SCRATCH_BYTES // 2, seed=7)
    log = tmp_path / "client.log"
    with small_tmpfs(tmp_path / "full", options="size=48m") as destination:
        ballast = fill(destination)
        os.truncate(ballast, ballast.stat().st_size - (8 << 20))
        with running_mover(server.scratch, destination, tmp_path):
            client = start_client(prompts, server, log, "--force", "--progress-interval", "2")
            time.sleep(20)
            assert client.poll() is None, log.read_text()
            ballast.unlink()
            assert client.wait(timeout=300) == 0, log.read_text()
        text = log.read_text()
        assert "the mover, which holds" in text, text
        check_dataset(destination / "prompts", prompts, reference, max_abs=1e-4).assert_ok(rows=count, orphans=False)


def test_a_removed_destination_ends_the_run_with_5_and_the_next_run_goes_on(
    server: Server, reference: Reference, destination: Path, tmp_path: Path
) -> None:
    prompts, count = prompts_of(tmp_path / "prompts.jsonl", SCRATCH_BYTES // 2, seed=8)
    log = tmp_path / "client.log"
    with running_mover(server.scratch, destination, tmp_path, "--limit-rate", "4M"):
        client = start_client(prompts, server, log, "--mover-timeout", "8")
        wait_until(lambda: list(destination.rglob("*.hsz")), timeout_s=60, what="a first stored part")
        shutil.rmtree(destination)
        assert client.wait(timeout=200) == 5, log.read_text()
        assert server.parts()  # kept
        kept = set(server.parts())
    assert kept <= set(server.parts()) | {path.name for path in destination.rglob("*.pt*")}
    destination.mkdir(exist_ok=True)
    with running_mover(server.scratch, destination, tmp_path):
        again = run_client(prompts, server)
    assert again.returncode == 0, again.stdout + again.stderr
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-4).assert_ok(rows=count)
