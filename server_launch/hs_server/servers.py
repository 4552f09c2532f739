"""`hs-server status` and `hs-server stop`: what became of the servers launched earlier, from any terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hs_formats.control import ControlFolder
from hs_formats.doctor_pass import has_passed
from hs_formats.errors import PreflightError, ServerLost, UsageError
from hs_formats.state import state_folder
from hs_server.orphans import find_orphans
from hs_server.readiness import armed_state, http_status
from hs_server.records import LaunchRecord, RecordStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hs_server.process_group import StopReport

__all__ = ["status", "stop"]

_PROBE_TIMEOUT_S = 5.0

_LAUNCHER_STOP_S = 45.0
"""How long a launcher in the foreground may take to stop its server: a little more than all of its steps together."""


def status(port: int | None, environment: Mapping[str, str]) -> int:
    """Print what is running on `port`, or everywhere; returns 0.

    Raises:
        ServerLost: nothing is.
        PreflightError: a server runs whose capture is no longer armed.
    """
    records = _records(port, RecordStore(state_folder(environment)))
    if not records:
        raise ServerLost(f"no server launched by hs-server is running{_on(port)}")
    disarmed = [record.port for record in records if not _print_status(record)]
    if disarmed:
        raise PreflightError(
            f"the capture of the server on port {', '.join(map(str, disarmed))} is not armed\n"
            "  stop it and launch it again"
        )
    return 0


def stop(port: int | None, environment: Mapping[str, str]) -> int:
    """Stop the server on `port`, or the only one; returns 0 once nothing of it is left.

    Raises:
        ServerLost: nothing runs there, or something cannot be killed.
        UsageError: there are several, and no port was given.
    """
    store = RecordStore(state_folder(environment))
    records = _records(port, store)
    if not records:
        return _stop_orphans(port, store)
    if len(records) > 1:
        ports = ", ".join(str(record.port) for record in records)
        raise UsageError(f"several servers are running\n  choose one with --port: {ports}")
    record = records[0]
    report = _stop_processes(record)
    if report is not None and report.left:
        raise ServerLost(f"these processes of the server cannot be killed: {list(report.left)}")
    store.remove(record)
    killed = f" ({len(report.killed)} processes had to be killed)" if report is not None and report.killed else ""
    sys.stdout.write(f"stopped the server on port {record.port}{killed}\n")
    return 0


def _stop_orphans(port: int | None, store: RecordStore) -> int:
    """End launches of this state folder whose record is lost.

    Raises:
        ServerLost: there are none, or something cannot be killed.
        UsageError: they are of several ports, and none was given.
    """
    found = find_orphans(store.state, port=port)
    if not found:
        raise ServerLost(f"no server launched by hs-server is running{_on(port)}")
    ports = sorted({orphans.port for orphans in found})
    if len(ports) > 1:
        listed = ", ".join(map(str, ports))
        raise UsageError(f"processes of several lost servers are left\n  choose one with --port: {listed}")
    left = [pid for orphans in found for pid in orphans.group.stop().left]
    if left:
        raise ServerLost(f"these processes of the server cannot be killed: {left}")
    count = sum(len(orphans.pids) for orphans in found)
    sys.stdout.write(f"ended {count} processes of a server on port {ports[0]} whose record was lost\n")
    return 0


def _stop_processes(record: LaunchRecord) -> StopReport | None:
    """Let a launcher in the foreground stop its own server; do it here where there is none, or where it fails."""
    if record.launcher_alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.launcher_pid, signal.SIGTERM)
        deadline = time.monotonic() + _LAUNCHER_STOP_S
        while time.monotonic() < deadline and (record.launcher_alive() and record.group.members()):
            time.sleep(0.1)
        if not record.group.members():
            return None
    return record.group.stop()


def _print_status(record: LaunchRecord) -> bool:
    """Print one server's state; False when its capture should be armed and is not."""
    members = record.group.members()
    host = record.url.removeprefix("http://").rpartition(":")[0].strip("[]")
    # 401: it was started with --api-key.
    answers = http_status(host, record.port, "/model_info", timeout_s=_PROBE_TIMEOUT_S) in (200, 401)
    if record.ready and answers:
        state = "ready"
    elif record.ready:
        state = "not answering"
    else:
        state = "starting"
    lines = [
        f"{record.url}  {state}",
        f"  model     {record.model_path} (profile {record.profile})",
        f"  processes {len(members)}, main pid {record.pid}"
        + ("" if record.group.leader_alive() else " (gone)")
        + (f", launcher pid {record.launcher_pid}" if record.launcher_alive() else ", detached"),
    ]
    armed = True
    if not record.capturing:
        lines.append("  capture   dormant")
    else:
        found = armed_state(Path(record.dump_dir), nonce=record.nonce, expected=record.local_ranks)
        armed = found.complete or not record.ready
        if found.markers:
            first = found.markers[0]
            lines.append(
                f"  capture   {'armed' if found.complete else 'NOT armed'} on {len(found.markers)} of {found.expected} "
                f"ranks: boundaries {','.join(map(str, first.boundaries))}, writers {first.writers}, "
                f"{first.bytes_per_token * first.copies:,} bytes per token"
            )
        else:
            lines.append(f"  capture   {'NOT armed' if record.ready else 'not armed yet'}")
        passed = has_passed(ControlFolder(Path(record.dump_dir)), port=record.port, nonce=record.nonce)
        lines.append(f"  doctor    {'passed' if passed else 'no pass on record'}")
        lines.append(f"  scratch   {record.dump_dir}")
    lines.append(f"  log       {record.log}")
    sys.stdout.write("\n".join(lines) + "\n")
    return armed


def _records(port: int | None, store: RecordStore) -> list[LaunchRecord]:
    if port is None:
        return store.all()
    record = store.find(port)
    return [] if record is None else [record]


def _on(port: int | None) -> str:
    return "" if port is None else f" on port {port}"
