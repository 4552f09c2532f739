"""SIGKILL of each process at random moments of a run: nothing lost, doubled, partial or wrong after a re-run."""

from __future__ import annotations

import json
import os
import random
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
CONCURRENCY = 8
BOUNDARIES = (1, 4, 7)


@dataclass(frozen=True)
class Sent:
    """What the ledgers of a dataset say was sent and ended; read as plain JSON.

    `not_taken`: requests for which no connection came about, or that the server declined at once, so that nothing was
    sent. `unwritten`: answered, but the record did not come. `adopted`: records that a later run found. `open`: sent,
    and neither done nor failed.
    """

    rids: frozenset[str]
    not_taken: frozenset[str]
    unwritten: frozenset[str]
    adopted: frozenset[str]
    open: frozenset[str]
    done: frozenset[str]


def read_sent(dataset: Path) -> Sent:
    rids: set[str] = set()
    not_taken: set[str] = set()
    unwritten: set[str] = set()
    adopted: set[str] = set()
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
                    if item.get("adopted"):
                        adopted.add(item["rid"])
                case "failed":
                    ended.add(item["rid"])
                    if item["kind"] == "not taken":
                        not_taken.add(item["rid"])
                    elif item["kind"] == "hook silent":
                        unwritten.add(item["rid"])
    sets = (rids - not_taken, not_taken, unwritten, adopted, rids - ended, done)
    return Sent(*map(frozenset, sets))


@pytest.fixture
def reference(references: Callable[..., Reference]) -> Reference:
    return references("tiny-llama", BOUNDARIES)


@pytest.fixture
def prompts(tmp_path: Path, reference: Reference) -> Path:
    """Rows of token ids: a client that needs no tokenizer starts in a third of the time."""
    rows = [{"id": row["id"], "input_ids": list(reference.ids(row))} for row in mixed_rows(SAMPLES, seed=4)]
    return write_rows(tmp_path / "prompts.jsonl", rows)


def started(prompts: Path, server: Server, log: Path, name: str) -> subprocess.Popen[bytes]:
    return start_client(prompts, server, log, "--dataset", name, "--concurrency", str(CONCURRENCY))


def wait_for_a_moment(draw: random.Random, client: subprocess.Popen[bytes], dataset: Path) -> None:
    """Some moment of a run: after so many samples are done, or, one time in ten, of its start-up."""
    if draw.random() > 0.1:
        target = draw.randrange(SAMPLES - 5)
        wait_until(
            lambda: client.poll() is not None or len(read_sent(dataset).done) >= target,
            timeout_s=180,
            what=f"{target} samples done",
            every_s=0.01,
        )
        time.sleep(draw.random() * 0.1)
    else:
        time.sleep(draw.random() * 1.5)


def ended(client: subprocess.Popen[bytes], log: Path) -> None:
    """The client ends by itself, and well."""
    assert client.wait(timeout=240) == 0, log.read_text()


@pytest.mark.parametrize("seed", range(2))
def test_client_killed_at_random_moments(
    servers: ServerFactory, reference: Reference, destination: Path, prompts: Path, tmp_path: Path, seed: int
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    draw = random.Random(seed)
    log = tmp_path / "client.log"
    kills = 0
    with running_mover(server.scratch, destination, tmp_path):
        for trial in range(2 * KILLS):
            name = f"trial-{trial}"
            dataset = destination / name
            before = server.answered()
            client = started(prompts, server, log, name)
            wait_for_a_moment(draw, client, dataset)
            kills += client.poll() is None
            client.kill()
            client.wait()
            killed = read_sent(dataset)
            done = run_client(prompts, server, "--dataset", name, "--concurrency", str(CONCURRENCY))
            assert done.returncode == 0, done.stdout + done.stderr
            check_dataset(dataset, prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
            sent = read_sent(dataset)
            # Each sample once, and once more those in flight at the kill whose records did not turn up.
            assert len(sent.rids) == SAMPLES + len(killed.open) - len(sent.adopted)
            assert sent.adopted <= killed.open
            # The server's own word: nothing was asked for that the ledger does not know.
            assert server.answered() - before <= len(sent.rids)
            assert killed.done <= sent.done
            if kills == KILLS // 2:
                break
    assert kills == KILLS // 2, "the runs end before they are killed"
    assert server.parts() == []


def test_mover_killed_at_random_moments(
    servers: ServerFactory, reference: Reference, destination: Path, prompts: Path, tmp_path: Path
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    draw = random.Random(7)
    kills = 0
    clients: list[subprocess.Popen[bytes]] = []
    mover = start_mover(server.scratch, destination, tmp_path)
    try:
        for trial in range(2 * KILLS):
            name = f"trial-{trial}"
            log = tmp_path / f"client-{trial}.log"
            client = started(prompts, server, log, name)
            clients.append(client)
            # A mover that is away at the client's start is a refusal, which is another test's matter.
            wait_until((destination / name / "ledger").exists, timeout_s=60, what="a ledger")
            wait_for_a_moment(draw, client, destination / name)
            kills += client.poll() is None
            mover.kill()
            time.sleep(draw.random() * 2)
            mover = start_mover(server.scratch, destination, tmp_path)
            ended(client, log)
            check_dataset(destination / name, prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES, orphans=False)
            sent = read_sent(destination / name)
            assert (len(sent.rids), sent.not_taken) == (SAMPLES, frozenset())  # the client only made a pause
            if kills == KILLS:
                break
        assert kills == KILLS, "the runs end before the mover is killed"
        assert server.parts() == []
    finally:
        for client in clients:
            client.kill()
            client.wait()
        mover.stop()


@pytest.fixture
def own_scratch(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "scratch", options="size=128m,mode=0700") as scratch:
        yield scratch


def test_server_killed_at_random_moments(
    own_scratch: Path, reference: Reference, destination: Path, prompts: Path, tmp_path: Path
) -> None:
    draw = random.Random(11)

    def start(port: int | None) -> Server:
        server, _ = launch_server(
            tiny_model("tiny-llama"),
            own_scratch,
            tmp_path,
            options=["--boundaries", "1,4,7"],
            sglang=["--chunked-prefill-size", "16"],
            port=port,
        )
        return server

    kills = 0
    server = start(None)
    with running_mover(own_scratch, destination, tmp_path) as mover:
        try:
            for trial in range(2 * KILLS):
                name = f"trial-{trial}"
                dataset = destination / name
                log = tmp_path / f"client-{trial}.log"
                client = started(prompts, server, log, name)
                wait_until((dataset / "ledger").exists, timeout_s=60, what="a ledger")
                wait_for_a_moment(draw, client, dataset)
                if client.poll() is not None:
                    ended(client, log)  # nothing was left to disturb, and a start of the server costs half a minute
                    continue
                kills += 1
                server.kill()
                server = start(server.port)
                # The client waits for the server and goes on; its lost requests are sent again.
                ended(client, log)
                check_dataset(dataset, prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
                sent = read_sent(dataset)
                # Each sample once, and once more those without an answer at the kill whose records did not turn up, and
                # those answered whose parts the writer thread still held.
                assert len(sent.rids) == SAMPLES + len(sent.open) + len(sent.unwritten)
                assert len(sent.open) <= CONCURRENCY, log.read_text()
                if kills == KILLS:
                    break
            assert kills == KILLS, "the runs end before the server is killed"
            assert_scratch_drained(mover, server)
        finally:
            server.stop()


def assert_scratch_drained(mover: MoverProcess, server: Server) -> None:
    """No part and no temporary of a dead launch is left."""
    wait_until(
        lambda: not [name for name in os.listdir(server.scratch) if name != ".hs"],
        timeout_s=30,
        what="an empty scratch",
    )
    assert mover.process.poll() is None
