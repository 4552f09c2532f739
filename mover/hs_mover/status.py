"""`hs-mover status`: the last word of a scratch folder's mover, for people and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from hs_formats.control import ControlFolder, MoverState, now_s
from hs_formats.dataset import UNCLAIMED
from hs_formats.errors import FormatError, StorageError

__all__ = ["NoMover", "describe", "show_status"]


class NoMover(StorageError):
    """no mover is alive on {scratch}: {why}; start one with hs-mover --src {scratch} --dst FOLDER"""


def show_status(scratch: Path, *, as_json: bool) -> None:
    """Print the state.

    Raises:
        NoMover: there is none, or it is dead or stopping.
    """
    try:
        state = ControlFolder(scratch).read_mover()
    except (FormatError, OSError) as error:
        raise NoMover(scratch=scratch, why=error) from error
    if state is None:
        raise NoMover(scratch=scratch, why="none has run here")
    at_s = now_s()
    if as_json:
        click.echo(json.dumps({**asdict(state), "alive": state.alive(at_s), "unclaimed": unclaimed_runs(state)}))
    else:
        for line in describe(state, at_s, unclaimed=unclaimed_runs(state)):
            click.echo(line)
    if not state.alive(at_s):
        why = "it was stopped" if state.state == "stopping" else f"silent for {at_s - state.heartbeat_s:.0f} s"
        raise NoMover(scratch=scratch, why=why)


def unclaimed_runs(state: MoverState) -> list[str]:
    """Runs whose parts no client has claimed, from the destination."""
    folder = Path(state.dst) / UNCLAIMED
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def describe(state: MoverState, at_s: float, *, unclaimed: list[str]) -> list[str]:
    """The state in a few lines; `at_s` is the control folder's clock."""
    share = state.used_bytes / state.capacity_bytes if state.capacity_bytes else 1.0
    lines = [
        f"mover     {state.mover_id}, pid {state.pid}, heartbeat {at_s - state.heartbeat_s:.1f} s ago",
        f"state     {state.state}{': ' if state.reason else ''}{state.reason}",
        f"to        {state.dst}, codec {state.codec}",
        f"scratch   {_mb(state.used_bytes)} of {_mb(state.capacity_bytes)} used ({share:.0%})",
        f"limit     clients may fill {_mb(state.limit_bytes)}; {_mb(state.reserve_bytes)} are reserved for others",
        f"backlog   {state.backlog_parts} parts, {_mb(state.backlog_bytes)}",
        f"drain     {_drain(state)}",
        f"rates     in {_mb(state.in_bytes_per_s)}/s, out {_mb(state.out_bytes_per_s)}/s",
        f"progress  a part was moved, or the mover started, {at_s - state.last_progress_s:.0f} s ago",
    ]
    if state.left_alone_parts:
        lines.append(
            f"left      {state.left_alone_parts} files with a part's name stay in scratch: the mover's log says why"
        )
    if unclaimed:
        lines.append(f"unclaimed {len(unclaimed)} runs below {Path(state.dst) / UNCLAIMED}: {', '.join(unclaimed[:8])}")
    return lines


def _drain(state: MoverState) -> str:
    if not state.backlog_parts:
        return "nothing waits"
    return f"{state.drain_s:.0f} s at the present rate" if state.drain_s >= 0 else "nothing is being moved now"


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
