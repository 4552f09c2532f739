"""Removes what dead clients left in the control folder, once it can mean nothing to anybody any more."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from hs_client.claim import live_runs
from hs_client.scan import parts_of_runs
from hs_formats.control import CLIENT_GRACE_S, STALE_S, ControlFolder, now_s
from hs_formats.names import CANARY_RUN, is_run_id, run_of_rid

__all__ = ["RUN_KEPT_S", "sweep"]

RUN_KEPT_S = 3600.0
"""How long after its client's last sign of life a run's late parts still find their dataset."""


def sweep(control: ControlFolder) -> None:
    """Remove records of clients whose promise counts no more, and registrations of runs of which nothing will come.

    Raises:
        OSError: the control folder is gone.
    """
    alive = live_runs(control)
    with contextlib.suppress(TimeoutError):  # whoever holds the lock is named when credit is needed
        _sweep_clients(control, alive)
    _sweep_runs(control, alive)


def _sweep_clients(control: ControlFolder, alive: Collection[str]) -> None:
    with control.credit():
        at_s = now_s()
        for client in control.read_clients():
            if client.run not in alive and at_s - client.heartbeat_s > 2 * (STALE_S + CLIENT_GRACE_S):
                control.remove_client(client.run)


def _sweep_runs(control: ControlFolder, alive: Collection[str]) -> None:
    old_s = time.time() - RUN_KEPT_S
    old: set[str] = set()
    for path in control.runs.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            if is_run_id(path.stem) and path.stem != CANARY_RUN and path.stat().st_mtime < old_s:
                old.add(path.stem)
    old -= {*alive, *(path.stem for path in control.clients.glob("*.json"))}
    # Parts that still lie here must find their dataset, however old they are.
    for run in old - {run_of_rid(rid) for rid in parts_of_runs(control.scratch, old)}:
        control.remove_run(run)
