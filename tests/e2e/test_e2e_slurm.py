"""Two nodes without Ray: the Slurm script as two processes with a shard each, real servers, and nodes that are lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chain import command, wait_until
from checker import Reference, check_dataset
from hs_formats.control import ControlFolder, now_s
from launching import free_port
from prompt_files import mixed_rows, write_rows
from slurm_stubs import SCRIPT, slurm_variables
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(1500)]

BOUNDARIES = (1, 4, 7)
SAMPLES = 60
FEW = 4
"""Samples that are done when something is killed."""


@dataclass
class Node:
    """One task of the array at work on a node of its own: the script, below it server, mover and client."""

    script: subprocess.Popen[bytes]
    scratch: Path
    log: Path

    def children(self) -> dict[str, int]:
        """Process ids of what the script has started, by name of the program."""
        found: dict[str, int] = {}
        for pid in descendants(self.script.pid):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                names = {Path(os.fsdecode(word)).name for word in words[:2]}
                for name in names & {"hs-server", "hs-mover", "hs-client"}:
                    found.setdefault(name, pid)
        return found

    def runs(self) -> set[str]:
        """Ids of the runs that clients have registered in its scratch."""
        return {path.stem for path in ControlFolder(self.scratch).runs.glob("*.json")}

    def ended(self) -> str:
        """Wait for the script's end; its whole output."""
        self.script.wait(timeout=200)
        return self.log.read_text()


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, sessions of their own included."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def done_of(dataset: Path, runs: set[str]) -> set[str]:
    """Ids of the samples that the ledgers of `runs` call done; read as plain JSON."""
    return {line["sample_id"] for line in ledger_lines(dataset, runs) if line["type"] == "done"}


def sent_of(dataset: Path, runs: set[str]) -> set[str]:
    """Ids of the samples that these runs may have sent."""
    return {line["sample_id"] for line in ledger_lines(dataset, runs) if line["type"] == "intent"}


def ledger_lines(dataset: Path, runs: set[str]) -> Iterator[dict[str, str]]:
    for run in runs:
        with contextlib.suppress(FileNotFoundError):
            for line in (dataset / "ledger" / f"{run}.jsonl").read_bytes().split(b"\n")[:-1]:
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


Start = Callable[..., Node]


@pytest.fixture
def start(tmp_path: Path, destination: Path) -> Iterator[Start]:
    """`start(task, prompts, scratch, restarts=0)`: the script as Slurm starts it, on the node that has this scratch."""
    programs = tmp_path / "slurm"
    programs.mkdir()
    for name, text in (("squeue", "echo RUNNING"), ("scontrol", f'echo "$@" >>{tmp_path / "scontrol.said"}')):
        (programs / name).write_text(f"#!/bin/bash\n{text}\n")
        (programs / name).chmod(0o755)
    nodes: list[Node] = []

    def begin(task: int, prompts: Path, scratch: Path, *, restarts: int = 0) -> Node:
        log = tmp_path / f"slurm-{task}-{restarts}.log"
        environment = {
            **os.environ,
            **slurm_variables(task, of=2, restarts=restarts),
            "PATH": os.pathsep.join([str(programs), str(Path(command("hs-client")).parent), os.environ["PATH"]]),
            "TMPDIR": str(tmp_path),
            "HS_JOB_MODEL": str(tiny_model("tiny-llama")),
            "HS_JOB_DST": str(destination),
            "HS_JOB_SERVER_ARGS": "--profile cpu --boundaries 1,4,7 -- --chunked-prefill-size 16",
            "HS_JOB_SCRATCH": str(scratch),
            "HS_JOB_PORT": str(free_port()),
            "HS_JOB_LOGS": str(tmp_path / "logs"),
        }
        with log.open("wb") as output:
            script = subprocess.Popen(
                [str(SCRIPT), str(prompts), "--concurrency", "1"],
                env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        nodes.append(Node(script, scratch, log))
        return nodes[-1]

    yield begin
    for node in nodes:
        kill(*descendants(node.script.pid))
        node.script.kill()
        node.script.wait()


@pytest.fixture
def scratches(tmp_path: Path) -> Iterator[list[Path]]:
    """Memory of three nodes."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(small_tmpfs(tmp_path / name, options="size=256m,mode=0700"))
            for name in ("node-a", "node-b", "node-c")
        ]


def few_are_done(node: Node, dataset: Path, before: set[str]) -> set[str]:
    """Runs of `node` once its client of now has some samples done, and is far from having all."""

    def enough() -> set[str]:
        assert node.script.poll() is None, node.log.read_text()
        found = node.runs() - before
        return found if len(done_of(dataset, found)) >= FEW else set()

    runs: set[str] = wait_until(enough, timeout_s=200, what="some samples done", every_s=0.02)
    return runs


def test_a_shard_whose_nodes_are_lost_ends_like_the_other(
    start: Start,
    scratches: list[Path],
    references: Callable[..., Reference],
    destination: Path,
    tmp_path: Path,
) -> None:
    reference = references("tiny-llama", BOUNDARIES)
    rows = [{"id": row["id"], "input_ids": list(reference.ids(row))} for row in mixed_rows(SAMPLES, seed=12)]
    prompts, dataset = write_rows(tmp_path / "prompts.jsonl", rows), destination / "prompts"
    stays, falls = start(0, prompts, scratches[0]), start(1, prompts, scratches[1])

    # Server and client of one task are killed. The script says so, and the task goes back into the queue.
    first = few_are_done(falls, dataset, set())
    programs = falls.children()
    kill(programs["hs-client"], *descendants(programs["hs-server"]))
    said = falls.ended()
    assert falls.script.returncode in (4, 137), said  # by whose end the script sees first
    assert re.search("error: (the server ended|it ends with exit code 137)", said), said
    assert (tmp_path / "scontrol.said").read_text() == "requeue 78\n"
    done_first = done_of(dataset, first)

    # On the same node again, which is then lost as a whole, with what lay in its memory.
    falls = start(1, prompts, scratches[1], restarts=1)
    second = few_are_done(falls, dataset, first)
    everything = descendants(falls.script.pid)
    kill(falls.script.pid, *everything)
    wait_until(lambda: not any(alive(pid) for pid in everything), timeout_s=30, what="the node's end")
    lost = sorted(name for name in os.listdir(scratches[1]) if name.startswith("hs-"))
    for name in lost:
        (scratches[1] / name).unlink()
    done_second = done_of(dataset, second)

    # On another node.
    falls = start(1, prompts, scratches[2], restarts=2)
    said = falls.ended()
    assert falls.script.returncode == 0, said
    assert "shard 1/2 is done" in said
    assert stays.ended().count("shard 0/2 is done") == 1, stays.log.read_text()
    assert stays.script.returncode == 0

    check_dataset(dataset, prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
    third, other = falls.runs(), stays.runs()
    assert len(first) == len(second) == len(third) == len(other) == 1
    assert sent_of(dataset, third), "killed too late to show anything"
    assert not sent_of(dataset, second) & done_first, "sent again what was done"
    assert not sent_of(dataset, third) & (done_first | done_second), "sent again what was done"
    assert not sent_of(dataset, other) & sent_of(dataset, first | second | third), "shards are apart"
    for scratch in (scratches[0], scratches[2]):
        control = ControlFolder(scratch)
        assert not [name for name in os.listdir(scratch) if name.startswith("hs-")]
        assert not control.live_markers(), "a server was left"
        mover = control.read_mover()
        assert mover is not None
        assert mover.state == "stopping" or not mover.alive(now_s()), "a mover was left"


def alive(pid: int) -> bool:
    """It runs, and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
