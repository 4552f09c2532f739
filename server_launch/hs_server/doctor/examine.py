"""A whole examination: the markers, SGLang's settings, the canaries; ends in a pass or in a diagnosis."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from hs_formats.control import CaptureStatistics, ControlFolder, Marker, now_s
from hs_formats.doctor_pass import DoctorPass, doctor_lock_path, doctor_pass_path, write_pass
from hs_formats.errors import FormatError, PreflightError, ServerLost, StorageError
from hs_server.capture.guards import unsafe_settings
from hs_server.doctor.canary import Prompt, canary_rids, make_prompts
from hs_server.doctor.marker_checks import marker_findings
from hs_server.doctor.observation import Expected, Finding
from hs_server.doctor.presence import missing_findings
from hs_server.doctor.room import Promise, record_bytes, room_limit
from hs_server.doctor.session import CanarySession, Times, remove_leftovers
from hs_server.doctor.values import rank_rounding, value_findings
from hs_server.doctor.wire import Wire, WireError

__all__ = ["Target", "examine", "pass_lines"]

_LONG_S = 12.0
"""A prompt over the chunk size that would take longer, by the speed of the others, is not sent."""

_LONG_BYTES = 1 << 30
_LONG_SHARE = 4
_STATISTICS_S = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server to examine. `nonce` and `ranks` are what its launch is known to have, where it is known."""

    url: str
    scratch: Path
    api_key: str = ""
    nonce: str = ""
    ranks: int = 0
    times: Times = field(default_factory=Times)


def examine(
    target: Target, *, pause: Callable[[float], None] = time.sleep, say: Callable[[str], object] = len
) -> DoctorPass:
    """Examine a server and note its pass.

    Args:
        target: the server.
        pause: sleeps; what it raises ends the examination.
        say: takes lines for the user while something is waited for.

    Raises:
        PreflightError: it does not pass; the text says why and what to change.
        ServerLost: it does not answer.
        StorageError: scratch has no room for the canaries, or is gone.
    """
    wire = Wire(target.url, api_key=target.api_key)
    control = ControlFolder(target.scratch)
    try:
        markers = sorted(control.live_markers(port=wire.port), key=lambda marker: (marker.dp_rank, marker.rank))
    except OSError as error:
        raise _unusable(target, error) from None
    if not markers:
        _refuse_unarmed(wire, target)
    _refuse(target.url, marker_findings(markers, nonce=target.nonce, ranks=target.ranks))
    longest, notes = _settings(wire, target, markers[0])
    try:
        with _only_one(control, pause=pause, say=say):
            doctor_pass_path(control, wire.port).unlink(missing_ok=True)
            passed = _canaries(wire, control, markers, target, longest=longest, notes=notes, pause=pause)
            write_pass(control, passed)
    except OSError as error:
        raise _unusable(target, error) from None
    return passed


def _unusable(target: Target, error: OSError) -> StorageError:
    return StorageError(f"scratch {target.scratch} cannot be used: {error}\n  see to it, launch again")


def _refuse_unarmed(wire: Wire, target: Target) -> NoReturn:
    """No capture is armed in scratch: there is no server, or it writes elsewhere or not at all."""
    try:
        wire.server_info(timeout_s=target.times.answer_s)
    except WireError as error:
        if not str(error).startswith("HTTP "):
            raise ServerLost(
                f"no server answers at {target.url} ({error})\n  start one with `hs-server launch`, or name yours with"
                " --server URL"
            ) from None
    raise PreflightError(
        f"no capture of a server on port {wire.port} is armed in {target.scratch}\n"
        "  start it with `hs-server launch`, or name its scratch with --dump-dir"
    )


def pass_lines(passed: DoctorPass) -> list[str]:
    """A pass for the terminal."""
    ranks = f", {passed.ranks} ranks equal" if passed.ranks > 1 else ""
    layers = ", every boundary seen entering its layer" if passed.layers_proved else ""
    lines = [f"doctor    passed: {passed.prompts} requests, {passed.tokens:,} tokens{ranks}{layers}"]
    return lines + [f"          not examined: {note}" for note in passed.notes]


def _refuse(url: str, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    lines = [line for finding in findings for line in (f"  {finding.text}", f"    {finding.remedy}")]
    count = "one thing is" if len(findings) == 1 else f"{len(findings)} things are"
    raise PreflightError("\n".join([f"the doctor does not pass the server at {url}: {count} wrong", *lines]))


def _settings(wire: Wire, target: Target, marker: Marker) -> tuple[int, list[str]]:
    """Longest prompt that may be sent, and what could not be looked at; refuses unsafe settings."""
    longest = marker.context_length - 1
    try:
        info = wire.server_info(timeout_s=target.times.answer_s)
    except WireError as error:
        if str(error).startswith(("HTTP 401", "HTTP 403")):
            raise PreflightError(
                f"the server at {target.url} wants another API key ({error})\n  give it in HS_API_KEY"
            ) from None
        if not str(error).startswith("HTTP 4"):
            raise ServerLost(f"no server answers at {target.url} ({error})\n  hs-server status") from None
        return longest, [f"SGLang's settings: {error}"]
    unsafe = unsafe_settings(info, mode=marker.capture_mode)
    _refuse(target.url, [Finding(f"{u.argument}={u.value}: {u.reason}", u.remedy) for u in unsafe])
    limit = info.get("max_req_input_len")
    return (min(longest, limit - 1) if isinstance(limit, int) else longest), []


@contextlib.contextmanager
def _only_one(
    control: ControlFolder, *, pause: Callable[[float], None], say: Callable[[str], object]
) -> Iterator[None]:
    """Hold the doctor's lock, with nothing of other examinations left; deletes one's own at the end."""
    fd = os.open(doctor_lock_path(control), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        said = False
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    say("doctor    waits for another examination on this scratch")
                said = True
                pause(0.1)
        remove_leftovers(control.scratch)
        try:
            yield
        finally:
            remove_leftovers(control.scratch)
    finally:
        os.close(fd)


def _canaries(
    wire: Wire,
    control: ControlFolder,
    markers: Sequence[Marker],
    target: Target,
    *,
    longest: int,
    notes: list[str],
    pause: Callable[[float], None],
) -> DoctorPass:
    first = markers[0]
    expected = Expected(
        nonce=first.nonce,
        boundaries=tuple(first.boundaries),
        dtype=first.dtype,
        hidden_size=first.hidden_size,
        ranks=tuple(marker.rank for marker in markers),
        writers=first.writers,
        expected_ranks=tuple(first.expected_ranks),
    )
    seed = secrets.randbits(32)
    prompts = make_prompts(seed=seed, chunk_size=first.chunk_size, longest=longest)
    rids = canary_rids(prompts, seed=seed)
    before = _statistics(control, markers)
    with Promise(control) as promise:
        session = CanarySession(wire, control, markers, promise, target.times, pause)
        sent = list[Prompt]()
        for prompt in prompts:
            if prompt.long and (why := _too_long(prompt, session, control, first)):
                notes.append(f"prefill in chunks: {why}")
                continue
            session.send([(prompt, rids[prompt.name][0])])
            sent.append(prompt)
        session.send([(prompt, rids[prompt.name][1]) for prompt in sent])
    wanted = {rank: _rows_of(session, rank) for rank in expected.ranks}
    after = _settled(control, markers, before, wanted, pause=pause)
    replays = sum(
        after[m.rank].graph_replays - _of(before, m.rank, "graph_replays") for m in markers if m.rank in after
    )
    findings = missing_findings(session.seen, expected, graph_replays=replays)
    if all(it.refused for it in session.seen):
        raise ServerLost(f"no server answers at {target.url} ({session.seen[0].refused})\n  hs-server status")
    _refuse(target.url, findings or value_findings(session.seen, expected))
    if note := rank_rounding(session.seen, expected):
        notes.append(note)
    proved = all(
        m.rank in after
        and after[m.rank].layers_proved - _of(before, m.rank, "layers_proved")
        == after[m.rank].canary_forwards - _of(before, m.rank, "canary_forwards")
        > 0
        for m in markers
    )
    if not proved:
        why = "batches were replayed from CUDA graphs" if replays else "its layers are called in a way not known here"
        notes.append(f"whether boundaries are what enters their layers: {why}")
    return DoctorPass(
        nonce=first.nonce,
        port=wire.port,
        ranks=len(markers),
        at_s=now_s(),
        prompts=len(session.seen),
        tokens=sum(it.prompt.n for it in session.seen),
        layers_proved=proved,
        notes=notes,
    )


def _too_long(prompt: Prompt, session: CanarySession, control: ControlFolder, marker: Marker) -> str:
    """Why a long prompt is not sent; empty where it is."""
    need = record_bytes(marker, prompt.n, copies=marker.copies)
    most = min(_LONG_BYTES, room_limit(control) // _LONG_SHARE)
    if need > most:
        return f"a record of {prompt.n:,} tokens takes {need:,} bytes, more than the {most:,} meant for it"
    took_s = prompt.n / session.tokens_per_s if session.tokens_per_s else 0.0
    if took_s > _LONG_S:
        return f"a prompt of {prompt.n:,} tokens would take some {took_s:.0f} s here"
    return ""


def _rows_of(session: CanarySession, rank: int) -> int:
    return sum(stop - start for it in session.seen if rank in it.records for start, stop in it.records[rank].ranges)


def _statistics(control: ControlFolder, markers: Sequence[Marker]) -> dict[int, CaptureStatistics]:
    found: dict[int, CaptureStatistics] = {}
    for marker in markers:
        with contextlib.suppress(FormatError, OSError):
            read = control.read_statistics(marker.pid, marker.rank)
            if read is not None:
                found[marker.rank] = read
    return found


def _settled(
    control: ControlFolder,
    markers: Sequence[Marker],
    before: dict[int, CaptureStatistics],
    rows: dict[int, int],
    *,
    pause: Callable[[float], None],
) -> dict[int, CaptureStatistics]:
    """The counters once they include the rows that were read, or as they are after a while."""
    deadline = time.monotonic() + _STATISTICS_S
    while True:
        after = _statistics(control, markers)
        if all(rank in after and after[rank].rows - _of(before, rank, "rows") >= count for rank, count in rows.items()):
            return after
        if time.monotonic() >= deadline:
            return after
        pause(0.02)


def _of(before: dict[int, CaptureStatistics], rank: int, name: str) -> int:
    return int(getattr(before[rank], name)) if rank in before else 0
