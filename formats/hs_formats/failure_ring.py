"""The capture's own record of requests it could not write: ``failed-<pid>-r<rank>`` in the control folder.

One writer a file. The file is allocated whole at start-up and written in place, because a full scratch is the most
likely reason to need it. It is a ring of fixed-size text slots, each with its sequence number and a checksum; slot 0 is
the header, which counts all failures so far and carries a random token that tells a new ring from an old one under the
same name (process ids recur in containers). Standard library only.
"""

from __future__ import annotations

import os
import re
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hs_formats.errors import FormatError

__all__ = ["FAILURE_SLOTS", "Failure", "FailureReader", "FailureRing"]

_SLOT_BYTES = 256
FAILURE_SLOTS = 2047
"""Failures kept; with the header the file takes 512 KiB of scratch."""

_MAX_SLOTS = 1 << 16
_PREFIX_BYTES = len("000000000000 00000000 ")
_PREFIX = re.compile(rb"([0-9]{12}) ([0-9a-f]{8}) ")
_HEADER = re.compile(r"hs-failures 1 ([0-9]{1,5}) ([0-9a-f]{8})")
_READ_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """One request the capture gave up: nothing more of it is written."""

    sequence: int
    rid: str
    reason: str


def _checksum(sequence: int, body: bytes) -> int:
    # With the number inside, a slot torn while the ring wraps cannot pass as a failure it never held.
    return zlib.crc32(body, zlib.crc32(b"%012d " % sequence))


def _encode(sequence: int, text: str) -> bytes:
    body = " ".join(text.split()).encode("ascii", "replace")[: _SLOT_BYTES - _PREFIX_BYTES - 1].rstrip(b" ")
    return (b"%012d %08x " % (sequence, _checksum(sequence, body)) + body).ljust(_SLOT_BYTES - 1) + b"\n"


def _decode(slot: bytes) -> tuple[int, str] | None:
    match = _PREFIX.match(slot)
    if match is None or len(slot) != _SLOT_BYTES:
        return None
    sequence = int(match[1])
    body = slot[_PREFIX_BYTES:-1].rstrip(b" ")  # the padding; a body never ends in a space
    if _checksum(sequence, body) != int(match[2], 16):
        return None
    return sequence, body.decode("ascii", "replace")


class FailureRing:
    """The writer's end; its methods may be called from any thread.

    Args:
        path: the file; an old one is overwritten.
        slots: failures to keep.

    Raises:
        OSError: the file cannot be created or its pages cannot be allocated.
    """

    def __init__(self, path: Path, *, slots: int = FAILURE_SLOTS) -> None:
        if not 1 <= slots <= _MAX_SLOTS:
            raise FormatError(f"a failure ring has 1..{_MAX_SLOTS} slots, not {slots}")
        self.path = path
        self._slots = slots
        self._count = 0
        self._lock = threading.Lock()
        self._title = f"hs-failures 1 {slots} {os.urandom(4).hex()}"
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, (slots + 1) * _SLOT_BYTES)
            os.pwrite(self._fd, _encode(0, self._title), 0)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def count(self) -> int:
        """Failures recorded so far."""
        return self._count

    def record(self, rid: str, reason: str) -> None:
        """Note that `rid` will never be whole, and why. Needs no free space.

        Raises:
            OSError: as `os.pwrite`, also after `close`.
        """
        with self._lock:
            count = self._count + 1
            slot = 1 + (count - 1) % self._slots
            os.pwrite(self._fd, _encode(count, f"{rid} {reason}"), slot * _SLOT_BYTES)
            os.pwrite(self._fd, _encode(count, self._title), 0)
            self._count = count

    def close(self) -> None:
        """Close the file; it stays readable."""
        with self._lock:
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
        self._token = ""

    def poll(self) -> list[Failure]:
        """Failures recorded since the last call, oldest first; none when the file is gone.

        Raises:
            FormatError: the file is not a failure ring.
            OSError: the file is there and cannot be read.
        """
        try:
            with self.path.open("rb", buffering=0) as file:
                slots = self._open_ring(file)
                return self._read_new(file, slots) if slots else []
        except FileNotFoundError:
            return []

    def _open_ring(self, file: IO[bytes]) -> int:
        """Number of slots when there may be something new, else 0."""
        header = _decode(file.read(_SLOT_BYTES))
        if header is None:
            return 0  # being created, or torn: the next poll sees it
        match = _HEADER.fullmatch(header[1])
        if match is None or not 1 <= int(match[1]) <= _MAX_SLOTS:
            raise FormatError(f"{self.path} is not a failure record of this version")
        slots = int(match[1])
        if match[2] != self._token:
            self._token, self._seen = match[2], 0
        if header[0] != self._seen:
            return slots
        # A writer killed between its two writes leaves a failure that the header does not count.
        file.seek((1 + self._seen % slots) * _SLOT_BYTES)
        following = _decode(file.read(_SLOT_BYTES))
        return slots if following is not None and following[0] > self._seen else 0

    def _read_new(self, file: IO[bytes], slots: int) -> list[Failure]:
        found: dict[int, Failure] = {}
        newest = oldest = 0
        for _ in range(_READ_ATTEMPTS):
            # The writer goes on while this reads, so a slot read early can be older than one read late: read again.
            file.seek(_SLOT_BYTES)
            data = file.read(slots * _SLOT_BYTES)
            for at in range(0, len(data), _SLOT_BYTES):
                slot = _decode(data[at : at + _SLOT_BYTES])
                if slot is not None and slot[0] > self._seen:
                    rid, _, reason = slot[1].partition(" ")
                    found[slot[0]] = Failure(slot[0], rid, reason)
            newest = max(found, default=self._seen)
            oldest = max(self._seen, newest - slots)
            if all(sequence in found for sequence in range(oldest + 1, newest + 1)):
                break
        self.lost += newest - self._seen - len(found)
        self._seen = newest
        return [found[sequence] for sequence in sorted(found)]
