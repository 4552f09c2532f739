"""The doctor against a real server of two ranks that is broken in one way after the other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chain import Server, command, launch_server, wait_until
from hs_formats.control import ControlFolder
from hs_formats.doctor_pass import has_passed
from hs_formats.errors import PreflightError
from hs_server.doctor.examine import Target, examine
from hs_server.doctor.session import Times
from hs_server.orphans import find_orphans
from hs_server.processes import process_info
from hs_server.records import RecordStore
from tiny_models import tiny_model

pytestmark = pytest.mark.sglang

FAULTS = Path(__file__).parents[1] / "support" / "capture_faults"
TIMES = Times(answer_s=60.0, parts_s=3.0)

FOUND = {
    "silent": ["silent hook: the server answered"],
    "silent rank": ["silent hook on rank 1"],
    "silent for small batches": ["silent hook for some batches", "`short`", "`one token`"],
    "next layer": ["given up by the capture: wrong layer: boundary 1 holds what enters layer 2 (+1); boundary 3"],
    "missing boundary": ["given up by the capture: not captured: the model handed over 1 auxiliary states, not 2"],
    "cut rows": ["short rows of rank 0", "short rows of rank 1", "`base` (24 tokens, alone): rows 15-16 missing"],
    "other ids": ["wrong ids of rank 0", "are not those sent"],
    "other nonce": ["marker of another launch: parts carry the nonce ffffffffffffffff"],
    "other values on a rank": ["unequal ranks: rank 1 holds other states than rank 0", "slots 2"],
    "equal slots": ["equal slots: boundary 3 and the last state hold the same states"],
    "constant slot": ["constant slot: the last state is one value in all channels"],
    "not finite": ["non-finite values: the last state"],
    "stale buffer": ["stale states: base and equal length"],
    "shifted rows": ["wrong rows: two prompts with one prefix"],
    "passes differ": ["passes disagree: the same prompts"],
}


@dataclass
class Patient:
    """The server, and the file that its fault is read from."""

    server: Server
    fault: Path

    @property
    def target(self) -> Target:
        (nonce,) = {marker.nonce for marker in ControlFolder(self.server.scratch).live_markers(port=self.server.port)}
        return Target(url=self.server.url, scratch=self.server.scratch, nonce=nonce, ranks=2, times=TIMES)

    def passed(self) -> bool:
        return has_passed(ControlFolder(self.server.scratch), port=self.server.port, nonce=self.target.nonce)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    work = tmp_path_factory.mktemp("doctor")
    fault = work / "fault"
    fault.write_text("")
    server, _ = launch_server(
        tiny_model("tiny-llama"),
        work / "scratch",
        work,
        options=["--boundaries", "1,3"],
        sglang=["--tp-size", "2", "--chunked-prefill-size", "16"],
        environment={"HS_TEST_FAULT": str(fault), "PYTHONPATH": str(FAULTS)},
    )
    yield Patient(server, fault)
    server.stop()


def test_a_sound_server_passes_at_launch_and_leaves_nothing_behind(patient: Patient) -> None:
    """With writers `first`: that rank 1 is examined at all is the canary's doing."""
    lines = patient.server.output.splitlines()
    (line,) = [line for line in lines if line.startswith("doctor")]
    assert "passed: 12 requests, " in line
    assert "2 ranks equal, every boundary seen entering its layer" in line
    assert lines[-1] == f"ready {patient.server.url}"
    assert patient.passed()
    assert patient.server.parts() == []
    assert not (patient.server.scratch / ".hs" / "clients" / "00000000.json").exists()


@pytest.mark.parametrize("fault", FOUND)
def test_a_fault_is_found_and_named(patient: Patient, fault: str) -> None:
    patient.fault.write_text(fault)
    try:
        with pytest.raises(PreflightError) as refused:
            examine(patient.target)
    finally:
        patient.fault.write_text("")
    text = str(refused.value)
    assert text.startswith(f"the doctor does not pass the server at {patient.server.url}: ")
    for words in FOUND[fault]:
        assert words in text, text
    assert patient.server.parts() == []
    assert not patient.passed(), "the pass of an earlier examination still stands"


def test_a_marker_of_another_launch_is_found_by_the_command(patient: Patient) -> None:
    """The marker keeps its lock, so that it looks alive; another nonce stands in it."""
    first, second = sorted(patient.server.scratch.glob(".hs/server-*.json"), key=lambda path: path.name[-6:])
    whole = second.read_text()
    nonce = patient.target.nonce
    second.write_text(whole.replace(nonce, "0" * 16))
    try:
        argv = [command("hs-server"), "doctor", "--server", patient.server.url, "--dump-dir", str(first.parents[1])]
        done = subprocess.run(argv, env=patient.server.environment, capture_output=True, text=True, check=False)
    finally:
        second.write_text(whole)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "marker of another launch: rank 1 (pid" in done.stderr
    assert "Traceback" not in done.stderr


def test_after_all_that_the_command_passes_it(patient: Patient) -> None:
    argv = [command("hs-server"), "doctor"]
    done = subprocess.run(argv, env=patient.server.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "doctor    passed: 12 requests" in done.stdout
    assert patient.passed()


def test_a_radix_cache_stops_the_launch(tmp_path: Path) -> None:
    fault = tmp_path / "fault"
    fault.write_text("radix cache")
    server, done = launch_server(
        tiny_model("tiny-llama"),
        tmp_path / "scratch",
        tmp_path,
        options=["--boundaries", "1,3"],
        environment={"HS_TEST_FAULT": str(fault), "PYTHONPATH": str(FAULTS)},
        check=False,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "disable_radix_cache=False: with the radix cache on" in done.stderr
    assert "launch with --disable-radix-cache" in done.stderr
    assert "ready" not in done.stdout
    assert not server.healthy()


def test_nothing_is_left_of_a_launch_after_a_hard_kill_and_a_stop(patient: Patient) -> None:
    """The last test of the server: its main process is killed, and the record of the launch is lost.

    SGLang's schedulers ask the kernel to end with their parent. Whether they did, or the stop ended them, tells its
    exit code; that a stuck one is ended by the stop is tested with a stand-in, in test_launch_lifecycle.py.
    """
    schedulers = patient.server.scheduler_pids()
    assert len(schedulers) == 2
    store = RecordStore(Path(patient.server.environment["HS_STATE_DIR"]))
    record = store.find(patient.server.port)
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    wait_until(lambda: not record.group.leader_alive(), timeout_s=10, what="the end of the main process")
    store.remove(record)
    done = patient.server.stop()
    assert (done.returncode, "whose record was lost" in done.stdout) in {(0, True), (4, False)}, done.stderr
    wait_until(
        lambda: not any((info := process_info(pid)) is not None and info.alive for pid in schedulers),
        timeout_s=10,
        what="the end of the schedulers",
    )
    assert find_orphans(Path(patient.server.environment["HS_STATE_DIR"])) == []
