"""What dead clients leave in the control folder is removed, and not before it can mean nothing to anybody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import anyio
import pytest
from hypothesis import given, strategies as st

from hs_client.claim import hold_claim, lock_holder
from hs_client.credits import CreditKeeper
from hs_client.neighbours import LEASED, overlapping_runs, shards_overlap
from hs_client.sweep import RUN_KEPT_S, sweep
from hs_formats import control as control_module
from hs_formats.control import CLIENT_GRACE_S, STALE_S, ClientState, ControlFolder, RunState, now_s
from hs_formats.names import PartName, Rid


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    folder = ControlFolder(tmp_path / "scratch")
    folder.create()
    return folder


def register(control: ControlFolder, run: str, *, silent_s: float) -> None:
    control.register_run(RunState(run=run, dataset="p", pid=1))
    at_s = time.time() - silent_s
    os.utime(control.runs / f"{run}.json", (at_s, at_s))


def client(control: ControlFolder, run: str, *, silent_s: float) -> None:
    record = control.client_record(run)
    record.write(asdict(ClientState(run=run, pid=1, heartbeat_s=now_s() - silent_s, promised_bytes=5)))
    record.close()


def test_runs_and_clients_go_when_they_can_mean_nothing_any_more(control: ControlFolder) -> None:
    long_s = RUN_KEPT_S + 10
    dead_s = 2 * (STALE_S + CLIENT_GRACE_S) + 1
    for run in ("00000000", "00000002", "00000003", "00000004", "00000006"):
        register(control, run, silent_s=long_s)
    register(control, "00000001", silent_s=10.0)
    part = PartName(Rid("00000002", 0, 0), 0, 5, 5, 0)
    (control.scratch / str(part)).touch()
    client(control, "00000003", silent_s=1.0)
    client(control, "00000004", silent_s=dead_s)
    register(control, "00000005", silent_s=long_s)
    client(control, "00000005", silent_s=dead_s)
    (control.runs / "not-a-run.json").touch()
    os.utime(control.runs / "not-a-run.json", (0, 0))
    claim = hold_claim(control, "00000005")
    try:
        sweep(control)
    finally:
        os.close(claim)
    assert sorted(path.stem for path in control.runs.glob("*.json")) == [
        "00000000",  # the canary's
        "00000001",  # ended a moment ago
        "00000002",  # has a part in scratch
        "00000003",  # its promise still counts
        "00000005",  # lives
        "not-a-run",
    ]
    assert sorted(path.stem for path in control.clients.glob("*.json")) == ["00000003", "00000005"]


HOLDER = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "fcntl.flock(fd, fcntl.LOCK_EX)\n"
    "print('held', flush=True); os.read(0, 1)\n"
)


def test_a_lock_that_somebody_keeps_is_waited_for_by_name(
    control: ControlFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module, "CREDIT_PATIENCE_S", 0.05)
    control.register_run(RunState(run="00000001", dataset="p", pid=1))
    keeper = CreditKeeper(control, "00000001", outstanding=lambda: 0)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(control.credit_lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.read(4)
        assert lock_holder(control.credit_lock) == holder.pid
        decision = anyio.run(keeper.take, 100)
        assert decision.verdict == "wait"
        assert f"process {holder.pid} holds" in decision.reason
        assert keeper.waiting == decision.reason
        anyio.run(keeper.publish)
        assert [client.waiting for client in control.read_clients()] == [decision.reason]
        sweep(control)
    finally:
        holder.communicate(b"x")
        keeper.close(remove=True)
    assert lock_holder(control.credit_lock) is None


@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_shards_overlap_when_a_sample_is_in_both(n: int, m: int, data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
    assert shards_overlap((i, n), (j, m)) == any(k % n == i and k % m == j for k in range(n * m))


def test_only_living_clients_with_rows_in_common_are_named(control: ControlFolder) -> None:
    claims: list[int] = []
    shards = {"00000001": ("p", "0/2"), "00000002": ("p", "1/2"), "00000003": ("q", "0/1"), "00000004": ("p", "0/1")}
    shards["00000005"] = ("r", LEASED)
    for run, (dataset, shard) in shards.items():
        control.register_run(RunState(run=run, dataset=dataset, pid=1, shard=shard))
        client(control, run, silent_s=0)
        if run != "00000004":
            claims.append(hold_claim(control, run))
    try:
        both = ["00000001", "00000002"]
        for mine, expected in (("0/1", both), ("1/2", ["00000002"]), ("2/4", ["00000001"]), (LEASED, both)):
            assert [found.run for found in overlapping_runs(control, "p", mine)] == expected
        assert [found.run for found in overlapping_runs(control, "r", "3/4")] == ["00000005"]
        assert overlapping_runs(control, "r", LEASED) == []
    finally:
        for claim in claims:
            os.close(claim)
