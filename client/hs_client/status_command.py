"""`hs-client status`: servers, mover and clients of a scratch folder, from its control folder alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hs_client.claim import live_runs
from hs_client.scan import parts_of_runs
from hs_client.tally import show_bytes
from hs_formats.control import ControlFolder, now_s, used_bytes
from hs_formats.errors import FormatError, PreflightError

__all__ = ["status_lines"]


def status_lines(scratch: Path) -> Iterator[str]:
    """What is going on in `scratch`, a line a fact.

    Raises:
        PreflightError: there is no control folder.
    """
    control = ControlFolder(scratch)
    if not control.root.is_dir():
        raise PreflightError(f"{scratch} is no scratch: it has no {control.root.name}; name yours with --scratch")
    at_s = now_s()
    yield f"scratch    {scratch}, {show_bytes(used_bytes(os.statvfs(scratch)))} used"
    yield from _servers(control)
    yield from _mover(control, at_s)
    yield from _clients(control, at_s)


def _servers(control: ControlFolder) -> Iterator[str]:
    markers = control.live_markers()
    for marker in markers:
        yield (
            f"server     port {marker.port}, pid {marker.pid}, rank {marker.rank}: {marker.model}, boundaries"
            f" {marker.boundaries}, {marker.dtype}, writers {marker.writers}, SGLang {marker.sglang_version}"
        )
    if not markers:
        yield "server     none armed"


def _mover(control: ControlFolder, at_s: float) -> Iterator[str]:
    try:
        mover = control.read_mover()
    except FormatError as error:
        yield f"mover      unreadable: {error}"
        return
    if mover is None:
        yield "mover      none ever ran here"
        return
    silent_s = at_s - mover.heartbeat_s
    alive = f"{mover.state}" if mover.alive(at_s) else f"not alive, last heard of {silent_s:.0f} s ago ({mover.state})"
    yield f"mover      pid {mover.pid}, {alive}{': ' + mover.reason if mover.reason else ''}, to {mover.dst}"
    yield (
        f"fill       {show_bytes(mover.used_bytes)} of {show_bytes(mover.capacity_bytes)}, limit"
        f" {show_bytes(mover.limit_bytes)}; {mover.backlog_parts} parts, {show_bytes(mover.backlog_bytes)} to move,"
        f" in {show_bytes(mover.in_bytes_per_s)}/s, out {show_bytes(mover.out_bytes_per_s)}/s"
    )


def _clients(control: ControlFolder, at_s: float) -> Iterator[str]:
    clients = control.read_clients()
    alive = live_runs(control)
    for client in clients:
        run = control.read_run(client.run)
        parts = sum(map(len, parts_of_runs(control.scratch, {client.run}).values()))
        state = "alive" if client.run in alive else f"dead, last heard of {at_s - client.heartbeat_s:.0f} s ago"
        wait = f", waiting for {client.waiting}" if client.waiting and client.run in alive else ""
        yield (
            f"client     run {client.run}, pid {client.pid}, {state}, dataset {run.dataset if run else 'unknown'},"
            f" {show_bytes(client.promised_bytes)} promised, {parts} parts in scratch{wait}"
        )
    if not clients:
        yield "client     none"
