"""`hs-client status`: what goes on in a scratch folder, from its control folder alone; how far a dataset has come."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from hs_client.claim import live_runs
from hs_client.generate.answers import answer_lines
from hs_client.info_command import open_dataset
from hs_client.scan import parts_of_runs
from hs_client.tally import show_bytes
from hs_formats.control import ClientState, ControlFolder, MoverState, now_s, used_bytes
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError, PreflightError
from hs_formats.ledger import Done, Failed, Intent, Rejected, iter_ledger
from hs_formats.location import Location
from hs_formats.names import run_of_rid

__all__ = ["dataset_lines", "status_lines"]


def status_lines(scratch: Path) -> Iterator[str]:
    """What is going on in `scratch`, a line a fact.

    Raises:
        PreflightError: there is no control folder, or it cannot be looked at.
    """
    control = ControlFolder(scratch)
    try:
        there = control.root.is_dir()
    except OSError as error:
        raise PreflightError(f"{scratch} cannot be read: {error.strerror}") from None
    if not there:
        raise PreflightError(f"{scratch} is no scratch: it has no {control.root.name}; name yours with --scratch")
    at_s = now_s()
    found = os.statvfs(scratch)
    used, size = used_bytes(found), found.f_blocks * found.f_frsize
    yield f"scratch    {scratch}, {show_bytes(used)} of {show_bytes(size)} used"
    yield from _servers(control)
    yield from _mover(control, at_s, used)
    clients = control.read_clients()
    alive = live_runs(control)
    parts = _parts(control, clients)
    for client in clients:
        yield _client(control, client, at_s, parts[client.run], alive=client.run in alive)
    if not clients:
        yield "client     none"


def _servers(control: ControlFolder) -> Iterator[str]:
    markers = control.live_markers()
    for marker in markers:
        yield (
            f"server     port {marker.port}, pid {marker.pid}, rank {marker.rank}: {marker.model}, boundaries"
            f" {marker.boundaries}, {marker.dtype}, writers {marker.writers}, SGLang {marker.sglang_version}"
        )
    if not markers:
        yield "server     none armed"


def _mover(control: ControlFolder, at_s: float, used: int) -> Iterator[str]:
    try:
        mover = control.read_mover()
    except FormatError as error:
        yield f"mover      unreadable: {error}"
        return
    if mover is None:
        yield "mover      none ever ran here"
        return
    reason = f": {mover.reason}" if mover.reason else ""
    if mover.alive(at_s):
        yield f"mover      pid {mover.pid}, {mover.state}{reason}, to {mover.dst}"
        yield f"fill       {_fill(mover, used)}"
        return
    # Whatever else it last said was true then: only the file system knows how full scratch is now.
    silent_s = at_s - mover.heartbeat_s
    how = "stopped" if mover.state == "stopping" else f"not alive, its last state was {mover.state}{reason}"
    yield f"mover      pid {mover.pid}, {how}; last heard of {silent_s:.0f} s ago, to {mover.dst}"
    yield f"fill       {show_bytes(used)} used now, the limit was {show_bytes(mover.limit_bytes)}; nothing is moved"


def _fill(mover: MoverState, used: int) -> str:
    return (
        f"{show_bytes(used)} of {show_bytes(mover.capacity_bytes)}, limit {show_bytes(mover.limit_bytes)};"
        f" {mover.backlog_parts} parts, {show_bytes(mover.backlog_bytes)} to move, in"
        f" {show_bytes(mover.in_bytes_per_s)}/s, out {show_bytes(mover.out_bytes_per_s)}/s"
    )


def _parts(control: ControlFolder, clients: Iterable[ClientState]) -> Counter[str]:
    """Parts in scratch by run, from one look at it: it may hold many, of many clients."""
    found = parts_of_runs(control.scratch, {client.run for client in clients})
    counts: Counter[str] = Counter()
    for rid, parts in found.items():
        counts[run_of_rid(rid)] += len(parts)
    return counts


def _client(control: ControlFolder, client: ClientState, at_s: float, parts: int, *, alive: bool) -> str:
    run = control.read_run(client.run)
    state = "alive" if alive else f"dead, last heard of {at_s - client.heartbeat_s:.0f} s ago"
    wait = f", waiting for {client.waiting}" if client.waiting and alive else ""
    progress = f": {client.progress}" if client.progress and alive else ""
    return (
        f"client     run {client.run}, pid {client.pid}, {state}, dataset {run.dataset if run else 'unknown'},"
        f" {show_bytes(client.promised_bytes)} promised, {parts} parts in scratch{wait}{progress}"
    )


def dataset_lines(dataset: Location, scratch: Path) -> Iterator[str]:
    """How far `dataset` has come, by its ledgers, and which runs go on with it in `scratch`.

    Raises:
        PreflightError: it is none, or a ledger cannot be read.
    """
    paths = open_dataset(dataset)
    try:
        yield from _settled(dataset, paths)
    except OSError as error:
        raise PreflightError(f"{dataset}: {error}") from None
    control = ControlFolder(scratch)
    here = control.clients.is_dir()
    clients = {client.run: client for client in control.read_clients()} if here else {}
    alive = live_runs(control) if here else set()
    going_on = [run for run in sorted(alive) if paths.ledger_file(run).exists() and run in clients]
    parts = _parts(control, [clients[run] for run in going_on]) if going_on else {}
    for run in going_on:
        yield _client(control, clients[run], now_s(), parts[run], alive=True)
    if not going_on:
        yield f"client     none works on it in {scratch}"


def _settled(dataset: Location, paths: DatasetPaths) -> Iterator[str]:
    """What the ledgers say of the samples."""
    done: set[str] = set()
    failed: dict[str, str] = {}
    sent: set[str] = set()
    rejected: set[str] = set()
    ledgers = sorted(paths.ledger.glob("*.jsonl"))
    for path in ledgers:
        for line in iter_ledger(path):
            match line:
                case Done():
                    done.add(line.sample_id)
                case Failed():
                    failed[line.sample_id] = line.kind
                case Rejected():
                    rejected.add(line.sample_id or line.row)
                case Intent():
                    sent.add(line.sample_id)
                case _:
                    pass
    given_up = failed.keys() - done
    unknown = sent - done - given_up - rejected
    yield f"dataset    {dataset}, {len(ledgers)} runs"
    yield (
        f"samples    {len(done)} done, {len(given_up)} failed, {len(rejected - done)} rejected,"
        f" {len(unknown)} sent and not settled"
    )
    yield from answer_lines(paths)
