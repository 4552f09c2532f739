"""examples/slurm/capture.sbatch among stand-ins: order, exit codes, signals, when a task goes back into the queue."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chain import wait_until
from slurm_stubs import SCRIPT, SlurmTask, slurm_variables

Make = Callable[..., SlurmTask]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """`make(loaded=True, NAME=VALUE...)`: a task with these variables; nothing that it started may outlive it."""
    made: list[SlurmTask] = []

    def task(*, loaded: bool = True, **environment: str) -> SlurmTask:
        made.append(SlurmTask(tmp_path, environment, loaded))
        return made[-1]

    yield task
    left = [task.left() for task in made]
    for task_made in made:
        task_made.end()
    assert left == [[] for _ in made]


def started(task: SlurmTask, what: str) -> subprocess.Popen[str]:
    """The task, once the stand-in `what` was started."""
    process = task.start("p.jsonl")
    wait_until(
        lambda: process.poll() is not None or any(event.startswith(what) for event in task.events()),
        timeout_s=30,
        what=f"the {what}",
        every_s=0.02,
    )
    assert process.poll() is None, process.communicate()
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


def test_a_task_from_its_start_to_its_end(make: Make) -> None:
    task = make(HS_JOB_SERVER_ARGS="--profile cpu -- --tp-size 2", HS_JOB_MOVER_ARGS="--threads 3", HS_JOB_PORT="8123")
    task.environment["CLIENT"] = "0"
    code, said = task.run("a.jsonl", "b c.jsonl", "--dataset", "both")
    assert (code, task.requeued()) == (0, False), said
    assert "shard 1/3 is done" in said
    scratch, dst = task.folder / "scratch", task.folder / "data"
    logs = task.folder / "logs" / "77" / "1"
    begun, rest = task.events()[:2], task.events()[2:]
    assert sorted(begun) == [
        f"mover --src {scratch} --dst {dst} --threads 3",
        (
            f"server launch --model-path /models/M --dump-dir {scratch} --port 8123 --log {logs / 'server.log'} "
            "--startup-timeout 3600 --profile cpu -- --tp-size 2"
        ),
    ]
    assert rest == [
        f"client run a.jsonl b c.jsonl --dataset both --server http://127.0.0.1:8123 --scratch {scratch} --shard 1/3",
        "server SIGTERM",
        "mover SIGTERM",
        f"mover --src {scratch} --dst {dst} --threads 3 --once",
    ]


@pytest.mark.parametrize(("code", "again"), [(1, False), (2, False), (3, False), (4, True), (5, True), (137, True)])
def test_what_the_client_ends_with(make: Make, code: int, again: bool) -> None:
    task = make(CLIENT=str(code))
    found, said = task.run()
    assert (found, task.requeued()) == (code, again), said
    assert "error: " in said
    after = [event for event in task.events() if event.endswith(("SIGTERM", "--once", "78"))]
    assert [event.split()[0] for event in after] == ["server", "mover", "mover", *["scontrol"] * again]


@pytest.mark.parametrize(
    ("what", "code", "expected", "again"),
    [
        ("SERVER", 3, 3, False),  # refused: it would be refused again
        ("SERVER", 2, 2, False),
        ("SERVER", 4, 4, True),
        ("SERVER", 139, 4, True),
        ("MOVER", 3, 3, False),
        ("MOVER", 5, 5, True),
        ("MOVER", 137, 5, True),
    ],
)
def test_what_does_not_start(make: Make, what: str, code: int, expected: int, again: bool) -> None:
    task = make(**{what: str(code)}, loaded=what == "SERVER")
    found, said = task.run()
    assert (found, task.requeued()) == (expected, again), said
    name = what.lower()
    assert f"the {name} ended before it was ready" in said
    assert f"error: the {name} says why" in said
    assert not any(event.startswith("client") for event in task.events())
    # Whose scratch another mover empties is left to it.
    assert any(event.endswith("--once") for event in task.events()) == ((what, code) != ("MOVER", 3))


@pytest.mark.parametrize(("what", "code"), [("server", 4), ("mover", 5)])
def test_what_ends_under_the_client(make: Make, what: str, code: int) -> None:
    task = make()
    process = started(task, "client")
    task.touch(f"{what}.end", "9")
    found, said = ended(process)
    assert (found, task.requeued()) == (code, True), said
    assert f"error: the {what} ended: draining" in said
    assert "client SIGTERM" in task.events()
    assert task.events()[-2].endswith("--once")


def test_a_client_that_is_done_counts_whatever_else_ends(make: Make) -> None:
    task = make()
    process = started(task, "client")
    task.touch("server.end", "9")
    task.touch("client.end", "0")
    assert (ended(process)[0], task.requeued()) == (0, False)


@pytest.mark.parametrize(("state", "again"), [("RUNNING", True), ("COMPLETING", False), ("", False)])
def test_sigterm_drains_and_only_a_task_that_slurm_calls_running_goes_back(make: Make, state: str, again: bool) -> None:
    task = make(STATE=state or " ")
    process = started(task, "client")
    process.send_signal(signal.SIGTERM)
    found, said = ended(process)
    assert (found, task.requeued()) == (130, again), said
    assert said.count("asked to end: draining") == 1
    ends = [event for event in task.events() if event.endswith(("SIGTERM", "--once"))]
    assert [event.split()[0] for event in ends] == ["client", "server", "mover", "mover"]
    assert ("Slurm is ending this task" in said) == (not again)


def test_sigterm_while_the_model_is_loaded(make: Make) -> None:
    task = make(loaded=False)
    process = started(task, "server")
    process.send_signal(signal.SIGTERM)
    found, said = ended(process)
    assert (found, task.requeued()) == (130, True), said
    assert not any(event.startswith("client") for event in task.events())


def test_a_server_that_is_never_ready(make: Make) -> None:
    task = make(loaded=False, HS_JOB_START_S="-119")
    found, said = task.run()
    assert (found, task.requeued()) == (4, True), said
    assert "the server is not ready in time" in said


def test_what_stays_in_scratch_is_no_success(make: Make) -> None:
    task = make(CLIENT="0", ONCE="5")
    found, said = task.run()
    assert (found, task.requeued()) == (5, True), said
    assert "scratch could not be emptied" in said


@pytest.mark.parametrize(("restarts", "again"), [(19, True), (20, False)])
def test_a_task_goes_back_so_often_and_no_more(make: Make, restarts: int, again: bool) -> None:
    task = make(CLIENT="4")
    found, said = task.run(variables=slurm_variables(1, of=3, restarts=restarts))
    assert (found, task.requeued()) == (4, again), said
    assert ("was put back into the queue 20 times" in said) == (not again)


def test_a_queue_that_does_not_take_it_is_said_with_what_to_do(make: Make) -> None:
    task = make(CLIENT="4", SCONTROL="1")
    found, said = task.run()
    assert found == 4
    assert "scontrol requeue failed: submit it again with HS_JOB_SHARDS=3 sbatch --array=1" in said


PART = {**slurm_variables(1, of=2), "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_MAX": "2"}


@pytest.mark.parametrize(
    ("variables", "environment", "code", "words"),
    [
        ({}, {}, 2, "submit it with sbatch --array"),
        (PART, {}, 2, "a part of an array would leave rows out"),
        (slurm_variables(1, of=3), {"HS_JOB_SHARDS": "1"}, 2, "there is no shard 1 of 1"),
        (slurm_variables(1, of=3), {"HS_JOB_MODEL": ""}, 2, "HS_JOB_MODEL is not set"),
        (slurm_variables(1, of=3), {"HS_JOB_DST": "/nowhere/data"}, 5, "there is no folder /nowhere/data on this node"),
        (slurm_variables(1, of=3), {"PATH": "/usr/bin:/bin"}, 2, "there is no hs-server here"),
    ],
    ids=["no array", "part", "shard", "model", "dst", "path"],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    make: Make, variables: dict[str, str], environment: dict[str, str], code: int, words: str
) -> None:
    task = make(**environment)
    found, said = task.run(variables=variables)
    assert (found, task.events()) == (code, []), said
    assert said.count("error: ") == 1
    assert words in said


def test_no_prompts(make: Make) -> None:
    task = make()
    process = task.start()
    assert ended(process)[0] == 2


def test_a_part_of_an_array_that_says_how_many_shards_there_are(make: Make) -> None:
    task = make(CLIENT="0", HS_JOB_SHARDS="16")
    assert task.run(variables=PART)[0] == 0
    assert any(event.endswith("--shard 1/16") for event in task.events())


def test_an_object_store_is_no_folder(make: Make) -> None:
    task = make(CLIENT="0", HS_JOB_DST="s3://bucket/data")
    assert task.run()[0] == 0
    assert sum("--dst s3://bucket/data" in event for event in task.events()) == 2


def test_bash_and_shellcheck_take_the_script() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    tool = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(tool), "--shell=bash", str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
