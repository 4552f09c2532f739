"""SIGKILL of each process at random moments of a run: nothing lost, doubled, partial or wrong after a re-run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chain import (
    MoverProcess,
    Server,
    ServerFactory,
    launch_server,
    run_client,
    running_mover,
    start_client,
    start_mover,
    wait_until,
)
from checker import Reference, check_dataset
from prompt_files import mixed_rows, write_rows
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]

KILLS = 10
SAMPLES = 60
BOUNDARIES = (1, 4, 7)


@dataclass(frozen=True)
class Sent:
    """What the ledgers of a dataset say was sent and ended; read as plain JSON."""

    rids: frozenset[str]
    ended: frozenset[str]
    done: frozenset[str]

    @property
    def in_flight(self) -> int:
        """Requests sent and neither done nor failed."""
        return len(self.rids - self.ended)


def read_sent(dataset: Path) -> Sent:
    rids: set[str] = set()
    ended: set[str] = set()
    done: set[str] = set()
    for path in (dataset / "ledger").glob("*.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            try:
                item = json.loads(line)
            except ValueError:
                continue
            match item["type"]:
                case "intent":
                    rids.add(item["rid"])
                case "done":
                    ended.add(item["rid"])
                    done.add(item["sample_id"])
                case "failed":
                    ended.add(item["rid"])
    return Sent(frozenset(rids), frozenset(ended), frozenset(done))


def answered(server: Server) -> int:
    """Requests for generation in the server's own access log, ours and the warm-up's."""
    return server.log.read_text(errors="replace").count('"POST /generate')


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "prompts.jsonl", mixed_rows(SAMPLES, seed=4))


def fresh(destination: Path) -> None:
    """Every trial has a dataset of its own."""
    shutil.rmtree(destination)
    destination.mkdir()


@pytest.mark.parametrize("seed", range(2))
def test_client_killed_at_random_moments(
    servers: ServerFactory,
    references: Callable[..., Reference],
    destination: Path,
    prompts: Path,
    tmp_path: Path,
    seed: int,
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    draw = random.Random(seed)
    with running_mover(server.scratch, destination, tmp_path):
        for trial in range(KILLS // 2):
            name = f"trial-{seed}-{trial}"
            dataset = destination / name
            before = answered(server)
            client = start_client(prompts, server, tmp_path / "client.log", "--dataset", name, "--concurrency", "8")
            target = draw.randrange(SAMPLES)
            # A moment of the run, not of the start-up: after so many samples are done, then at random.
            wait_until(
                lambda: client.poll() is not None or len(read_sent(dataset).done) >= target,  # noqa: B023
                timeout_s=180,
                what=f"{target} samples done",
                every_s=0.02,
            )
            time.sleep(draw.random() * 0.2)
            client.kill()
            client.wait()
            killed = read_sent(dataset)
            done = run_client(prompts, server, "--dataset", name, "--concurrency", "8")
            assert done.returncode == 0, done.stdout + done.stderr
            check_dataset(dataset, prompts, references("tiny-llama", BOUNDARIES), max_abs=1e-5).assert_ok(rows=SAMPLES)
            sent = read_sent(dataset)
            assert len(sent.rids) <= SAMPLES + killed.in_flight, f"{len(sent.rids)} sent, {killed.in_flight} in flight"
            # The server's own word: nothing was asked for that the ledger does not know.
            assert answered(server) - before <= len(sent.rids)
            for sample in killed.done:
                assert sample in sent.done
    assert server.parts() == []


def test_mover_killed_at_random_moments(
    servers: ServerFactory,
    references: Callable[..., Reference],
    destination: Path,
    prompts: Path,
    tmp_path: Path,
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    draw = random.Random(7)
    client: subprocess.Popen[bytes] | None = None
    mover = start_mover(server.scratch, destination, tmp_path)
    try:
        for trial in range(KILLS):
            name = f"trial-{trial}"
            log = tmp_path / f"client-{trial}.log"
            client = start_client(prompts, server, log, "--dataset", name, "--concurrency", "8")
            target = draw.randrange(SAMPLES)
            wait_until(
                lambda: client.poll() is not None or len(read_sent(destination / name).done) >= target,  # noqa: B023
                timeout_s=180,
                what=f"{target} samples done",
                every_s=0.02,
            )
            time.sleep(draw.random() * 0.2)
            mover.kill()
            time.sleep(draw.random() * 2)
            mover = start_mover(server.scratch, destination, tmp_path)
            assert client.wait(timeout=180) == 0, log.read_text()
            check_dataset(destination / name, prompts, references("tiny-llama", BOUNDARIES), max_abs=1e-5).assert_ok(
                rows=SAMPLES, orphans=False
            )
            assert len(read_sent(destination / name).rids) == SAMPLES  # the client never noticed more than a pause
        assert server.parts() == []
    finally:
        if client is not None and client.poll() is None:
            client.kill()
        mover.stop()


@pytest.fixture
def own_scratch(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "scratch", options="size=128m,mode=0700") as scratch:
        yield scratch


def test_server_killed_at_random_moments(
    own_scratch: Path, references: Callable[..., Reference], destination: Path, prompts: Path, tmp_path: Path
) -> None:
    draw = random.Random(11)
    model = tiny_model("tiny-llama")

    def start(port: int | None) -> Server:
        server, _ = launch_server(
            model,
            own_scratch,
            tmp_path,
            options=["--boundaries", "1,4,7"],
            sglang=["--chunked-prefill-size", "16"],
            port=port,
        )
        return server

    server = start(None)
    with running_mover(own_scratch, destination, tmp_path) as mover:
        try:
            for trial in range(KILLS):
                name = f"trial-{trial}"
                dataset = destination / name
                log = tmp_path / f"client-{trial}.log"
                client = start_client(prompts, server, log, "--dataset", name, "--concurrency", "8")
                target = draw.randrange(SAMPLES)
                wait_until(
                    lambda: client.poll() is not None or len(read_sent(dataset).done) >= target,  # noqa: B023
                    timeout_s=180,
                    what=f"{target} samples done",
                    every_s=0.02,
                )
                time.sleep(draw.random() * 0.2)
                kill_server(server)
                killed = read_sent(dataset)
                server = start(server.port)
                # The client waits for the server and goes on; its lost requests are sent again.
                assert client.wait(timeout=240) in (0, 1), log.read_text()
                done = run_client(prompts, server, "--dataset", name, "--concurrency", "8")
                assert done.returncode == 0, log.read_text() + done.stdout + done.stderr
                check_dataset(dataset, prompts, references("tiny-llama", BOUNDARIES), max_abs=1e-5).assert_ok(
                    rows=SAMPLES
                )
                assert len(read_sent(dataset).rids) <= SAMPLES + killed.in_flight + 8
            assert_scratch_drained(mover, server)
        finally:
            server.stop()


def kill_server(server: Server) -> None:
    """SIGKILL to every process of the launch: main, scheduler, detokenizer."""
    group = os.getpgid(server.scheduler_pids()[0])
    os.killpg(group, signal.SIGKILL)
    wait_until(lambda: not server.scheduler_pids(), timeout_s=30, what="the end of the killed server")


def assert_scratch_drained(mover: MoverProcess, server: Server) -> None:
    """No part and no temporary of a dead launch is left."""
    wait_until(
        lambda: not [name for name in os.listdir(server.scratch) if name != ".hs"],
        timeout_s=30,
        what="an empty scratch",
    )
    assert mover.process.poll() is None
