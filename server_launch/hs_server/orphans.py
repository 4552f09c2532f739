"""Processes of launches whose record is lost: found by the variables that every process of a launch inherits.

Only launches of this state folder count; another user's or another folder's are nobody's business here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hs_server.plan import ENV_LAUNCH_ID
from hs_server.process_group import ServerGroup
from hs_server.processes import list_processes, process_info, variables

__all__ = ["Orphans", "find_orphans", "launch_port", "launch_variables"]

ENV_LAUNCH_PORT = "HS_LAUNCH_PORT"
ENV_LAUNCH_STATE = "HS_LAUNCH_STATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphans:
    """Living processes of one launch."""

    launch_id: str
    port: int
    pids: tuple[int, ...]

    @property
    def group(self) -> ServerGroup:
        """The processes of the launch, to be stopped."""
        found = [info for pid in self.pids if (info := process_info(pid)) is not None]
        # The main process leads its session and started first; where it is gone, its oldest child tells its session.
        first = min(found, key=lambda info: (info.start_ticks, info.pid), default=None)
        session, ticks = (first.session, first.start_ticks) if first is not None else (0, 0)
        return ServerGroup(pid=session, start_ticks=ticks, launch_id=self.launch_id)


def launch_variables(*, port: int, state: Path) -> dict[str, str]:
    """What the processes of a launch are found by, beside its id."""
    return {ENV_LAUNCH_PORT: str(port), ENV_LAUNCH_STATE: str(state.absolute())}


def find_orphans(state: Path, *, port: int | None = None) -> list[Orphans]:
    """Launches of the state folder `state` that have living processes, recorded or not; of `port` alone if given."""
    found: dict[tuple[str, int], list[int]] = {}
    wanted = str(state.absolute())
    own = os.getpid()
    for process in list_processes():
        if process.pid == own:
            continue
        told = variables(process.pid, (ENV_LAUNCH_ID, ENV_LAUNCH_PORT, ENV_LAUNCH_STATE))
        if told.get(ENV_LAUNCH_STATE) != wanted or ENV_LAUNCH_ID not in told:
            continue
        text = told.get(ENV_LAUNCH_PORT, "")
        number = int(text) if text.isdigit() else 0
        if port in (None, number):
            found.setdefault((told[ENV_LAUNCH_ID], number), []).append(process.pid)
    return [
        Orphans(launch_id=launch_id, port=number, pids=tuple(sorted(pids)))
        for (launch_id, number), pids in sorted(found.items(), key=lambda item: item[0][1])
    ]


def launch_port(pid: int) -> int:
    """The port of the launch that process `pid` belongs to; 0 where it belongs to none, or cannot be seen."""
    text = variables(pid, (ENV_LAUNCH_PORT,)).get(ENV_LAUNCH_PORT, "")
    return int(text) if text.isdigit() else 0
