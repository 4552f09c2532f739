"""``doctor-<port>.json`` in the control folder: the server on this port has passed `hs-server doctor`.

A pass belongs to one launch: it counts while the scheduler processes that leave markers carry its nonce. The record is
a `FixedRecord`, one a port, so that it stays small however often servers are launched.

Standard library only.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from hs_formats.control import ControlFolder
from hs_formats.errors import FormatError
from hs_formats.fixed_record import FixedRecord, read_record
from hs_formats.part import parse_struct

__all__ = [
    "DoctorPass",
    "doctor_lock_path",
    "doctor_pass_path",
    "forget_dead_passes",
    "has_passed",
    "read_pass",
    "write_pass",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorPass:
    """What was examined, and with what coverage.

    Attributes:
        nonce: of the launch.
        port: of the server.
        ranks: scheduler processes that were compared.
        at_s: CLOCK_BOOTTIME seconds.
        prompts: canary requests sent.
        tokens: their tokens.
        layers_proved: every boundary was seen to be what enters its layer.
        notes: what could not be examined, for people.
    """

    nonce: str
    port: int
    ranks: int
    at_s: float
    prompts: int
    tokens: int
    layers_proved: bool
    notes: list[str]


def doctor_pass_path(control: ControlFolder, port: int) -> Path:
    """The pass of the server on `port`."""
    return control.root / f"doctor-{port}.json"


def doctor_lock_path(control: ControlFolder) -> Path:
    """Whoever sends canary requests holds a lock (flock) on this file."""
    return control.root / "doctor.lock"


def write_pass(control: ControlFolder, passed: DoctorPass) -> None:
    """Note that a server has passed.

    Raises:
        OSError: the record cannot be made, or there is no room for it.
    """
    with FixedRecord(doctor_pass_path(control, passed.port)) as record:
        record.write(asdict(passed))


def read_pass(control: ControlFolder, port: int) -> DoctorPass | None:
    """The last pass of a server on `port`; None where there is none that this version can read."""
    try:
        record = read_record(doctor_pass_path(control, port))
        return None if record is None else parse_struct(DoctorPass, record)
    except (OSError, FormatError):
        return None


def forget_dead_passes(control: ControlFolder) -> int:
    """Remove the passes of launches without a living scheduler process; returns how many."""
    live = {(marker.port, marker.nonce) for marker in control.live_markers()}
    removed = 0
    for path in control.root.glob("doctor-*.json"):
        port = path.stem.removeprefix("doctor-")
        passed = read_pass(control, int(port)) if port.isdigit() else None
        if passed is None or (passed.port, passed.nonce) not in live:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def has_passed(control: ControlFolder, *, port: int, nonce: str) -> bool:
    """Whether the launch `nonce` on `port` has passed the doctor."""
    passed = read_pass(control, port)
    return passed is not None and passed.nonce == nonce
