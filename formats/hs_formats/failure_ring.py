"""The capture's own record of requests it could not write: ``failed-<pid>-r<rank>`` in the control folder.

One writer a file. The file is allocated whole at start-up and written in place, because a full scratch is the most
likely reason to need it. It is a ring of fixed-size text slots; slot 0 is the header that counts all failures so far,
so that a reader who saw the same count need not look further. Standard library only.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from hs_formats.errors import FormatError

__all__ = ["FAILURE_SLOTS", "Failure", "FailureReader", "FailureRing"]

_SLOT_BYTES = 256
FAILURE_SLOTS = 2047
"""Failures kept; with the header the file takes 512 KiB of scratch."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One request the capture gave up: nothing more of it is written."""

    sequence: int
    rid: str
    reason: str


def _encode(sequence: int, text: str) -> bytes:
    body = text.encode("ascii", "replace")[: _SLOT_BYTES - 24].replace(b"\n", b" ")
    return (b"%012d %08x " % (sequence, zlib.crc32(body)) + body).ljust(_SLOT_BYTES - 1) + b"\n"


def _decode(slot: bytes) -> tuple[int, str] | None:
    try:
        sequence, checksum = int(slot[:12]), int(slot[13:21], 16)
    except ValueError:
        return None
    body = slot[22:-1].rstrip(b" ")
    # The writer's own trailing spaces are gone with the padding, so it never writes any.
    return (sequence, body.decode("ascii")) if zlib.crc32(body) == checksum else None


class FailureRing:
    """The writer's end.

    Raises:
        OSError: the file cannot be created or its pages cannot be allocated.
    """

    def __init__(self, path: Path, *, slots: int = FAILURE_SLOTS) -> None:
        self.path = path
        self._slots = slots
        self._count = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, (slots + 1) * _SLOT_BYTES)
            os.pwrite(self._fd, _encode(0, f"hs-failures 1 {slots}"), 0)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def count(self) -> int:
        """Failures recorded so far."""
        return self._count

    def record(self, rid: str, reason: str) -> None:
        """Note that `rid` will never be whole, and why. Needs no free space."""
        self._count += 1
        slot = 1 + (self._count - 1) % self._slots
        os.pwrite(self._fd, _encode(self._count, f"{rid} {' '.join(reason.split())}".rstrip()), slot * _SLOT_BYTES)
        os.pwrite(self._fd, _encode(self._count, f"hs-failures 1 {self._slots}"), 0)

    def close(self) -> None:
        """Close the file; it stays readable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FailureReader:
    """The reader's end: yields each failure of one file once.

    `lost` counts failures that were overwritten before they could be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = 0
        self._seen = 0

    def poll(self) -> list[Failure]:
        """Failures recorded since the last call, oldest first; none when the file is gone.

        Raises:
            FormatError: the file is not a failure ring.
        """
        try:
            with self.path.open("rb") as file:
                header = _decode(file.read(_SLOT_BYTES))
                if header is None:
                    return []  # being created, or torn: the next poll sees it
                fields = header[1].split()
                if len(fields) != 3 or fields[0] != "hs-failures":
                    raise FormatError(f"{self.path} is not a failure record")
                count, slots = header[0], int(fields[2])
                if count == self._seen:
                    return []
                data = file.read(slots * _SLOT_BYTES)
        except FileNotFoundError:
            return []
        found: list[Failure] = []
        for at in range(0, len(data), _SLOT_BYTES):
            slot = _decode(data[at : at + _SLOT_BYTES])
            if slot is None or slot[0] <= self._seen:
                continue
            rid, _, reason = slot[1].partition(" ")
            found.append(Failure(slot[0], rid, reason))
        found.sort(key=lambda failure: failure.sequence)
        if found:
            self.lost += found[-1].sequence - self._seen - len(found)
            self._seen = found[-1].sequence
        return found
