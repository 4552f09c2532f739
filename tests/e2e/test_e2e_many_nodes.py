"""Two logical nodes of Ray on this machine, each with a scratch, a mover and a real server; one of them is killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from chain import command, wait_until
from checker import Reference, check_dataset
from hs_formats.control import ControlFolder, now_s
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Done, read_ledger
from launching import node_ports
from prompt_files import mixed_rows, write_rows
from ray_cluster import RESOURCE, ray_cluster, ray_environment
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.tmpfs]

BOUNDARIES = (1, 4, 7)
SAMPLES = 60
LONGEST = 250  # long enough that a run lasts for some seconds on any machine
NODES = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    pytest.importorskip("ray")
    with ray_cluster(NODES) as address:
        yield address


@pytest.fixture
def scratches(tmp_path: Path) -> Iterator[list[Path]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(small_tmpfs(tmp_path / f"scratch{node}", options="size=256m")) for node in range(NODES)
        ]


class Run:
    """A driver in the background."""

    def __init__(self, address: str, prompts: Path, destination: Path, work: Path, port: str) -> None:
        model = tiny_model("tiny-llama")
        server = f"--model-path {model} --profile cpu --boundaries 1,4,7 --startup-timeout 240"
        self.log = work / "driver.log"
        self.summary = work / "summary.json"
        argv = [command("hs-client"), "run", str(prompts), f"--ray={address}", "--nodes", str(NODES)]
        argv += ["--node-resource", RESOURCE, "--server", f"http://127.0.0.1:{port}", "--concurrency", "1"]
        argv += ["--scratch", str(work / "scratch{node}"), "--progress-interval", "2"]
        argv += ["--node-server", f"{server} -- --chunked-prefill-size 16"]
        argv += ["--node-mover", f"--dst {shlex.quote(str(destination))}", "--summary-json", str(self.summary)]
        environment = {**ray_environment(), "HS_STATE_DIR": str(work / "state")}
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )

    @property
    def told(self) -> str:
        """What it has printed."""
        return self.log.read_text()

    def actor(self, node: int) -> int:
        """The process of the node's actor, the last one."""
        return int(re.findall(rf"^node {node} \(.*\): process (\d+), logs in", self.told, re.MULTILINE)[-1])

    def runs(self) -> list[tuple[int, str]]:
        """Nodes whose clients have joined, and their runs."""
        return [
            (int(node), run)
            for node, run in re.findall(r"^node (\d) \(.*\): run ([0-9a-f]{8}),", self.told, re.MULTILINE)
        ]

    def end(self) -> None:
        """For a test that failed."""
        for number in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                self.process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(120)


def done_by(dataset: Path, run: str) -> list[str]:
    """Samples that a run has got done by now."""
    path = DatasetPaths(dataset).ledger / f"{run}.jsonl"
    return [line.sample_id for line in read_ledger(path) if isinstance(line, Done)] if path.exists() else []


def check_stopped(scratches: Sequence[Path]) -> None:
    """No server, no mover and no part is left."""
    for scratch in scratches:
        control = ControlFolder(scratch)
        assert control.live_markers() == []
        mover = control.read_mover()
        assert mover is None or not mover.alive(now_s())
        assert [name for name in os.listdir(scratch) if name.startswith("hs-")] == []


def test_a_node_is_killed_and_every_sample_is_there_once(
    cluster: str,
    scratches: list[Path],
    references: Callable[..., Reference],
    destination: Path,
    tmp_path: Path,
) -> None:
    reference = references("tiny-llama", BOUNDARIES)
    rows = [
        {"id": row["id"], "input_ids": list(reference.ids(row))}
        for row in mixed_rows(SAMPLES, seed=12, longest=LONGEST)
    ]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    dataset = destination / "prompts"
    run = Run(cluster, prompts, destination, tmp_path, node_ports(NODES))
    try:

        def sending() -> tuple[int, str] | None:
            assert run.process.poll() is None, run.told
            return next(((node, name) for node, name in run.runs() if len(done_by(dataset, name)) >= 5), None)

        node, lost = wait_until(sending, timeout_s=300, what="five samples of a node", every_s=0.02)
        server = ControlFolder(scratches[node]).live_markers()[0].pid
        os.kill(run.actor(node), signal.SIGKILL)
        os.killpg(os.getpgid(server), signal.SIGKILL)
        before = done_by(dataset, lost)
        assert 5 <= len(before) < SAMPLES
        assert run.process.wait(300) == 0, run.told
        assert f"warning: node {node}" in run.told
        check_dataset(dataset, prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
        check_stopped(scratches)
        # What was done when the node was killed was not done again. The one request that its client had in flight may
        # have been stored all the same, after the row had gone to the other node.
        runs = [path.stem for path in DatasetPaths(dataset).ledger.iterdir()]
        done = [sample for name in runs for sample in done_by(dataset, name)]
        assert set(done) == {str(row["id"]) for row in rows}
        assert [sample for sample in before if done.count(sample) != 1] == []
        assert len(done) <= SAMPLES + 1
        facts = json.loads(run.summary.read_text())
        assert facts["exit_code"] == 0
        assert facts["samples"]["pending"] == facts["samples"]["failed"] == 0
        assert {each["run"] for each in facts["nodes"]} >= {lost}
        assert None in [each["exit_code"] for each in facts["nodes"]]
    finally:
        run.end()
