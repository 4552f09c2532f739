"""A small state file that can be rewritten when its file system is full.

Scratch is full exactly when its control files matter most, so these files are created once at their final size, with
every page allocated, and then written in place. A file holds two slots written in turn; each carries a sequence number
and a checksum, so a reader takes the newest whole one and a torn write is never seen. A slot is text::

    hs1 <sequence 12 digits> <payload bytes 6 digits> <crc32 of the payload 8 hex>
    {"json": "payload"}

padded with spaces. Standard library only.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hs_formats.errors import FormatError

__all__ = ["SLOT_BYTES", "FixedRecord", "read_record"]

SLOT_BYTES = 4096
_HEADER_BYTES = len("hs1 000000000000 000000 00000000\n")
_READ_ATTEMPTS = 4


def _encode_slot(sequence: int, payload: bytes) -> bytes:
    if len(payload) > SLOT_BYTES - _HEADER_BYTES - 1:
        raise FormatError(f"a control record of {len(payload)} bytes does not fit its slot of {SLOT_BYTES}")
    header = b"hs1 %012d %06d %08x\n" % (sequence, len(payload), zlib.crc32(payload))
    return (header + payload).ljust(SLOT_BYTES - 1) + b"\n"


def _decode_slot(slot: bytes) -> tuple[int, bytes] | None:
    fields = slot[:_HEADER_BYTES].split()
    if len(fields) != 4 or fields[0] != b"hs1":
        return None
    try:
        sequence, size, checksum = int(fields[1]), int(fields[2]), int(fields[3], 16)
    except ValueError:
        return None
    payload = slot[_HEADER_BYTES : _HEADER_BYTES + size]
    if len(payload) != size or zlib.crc32(payload) != checksum:
        return None
    return sequence, payload


def _newest(data: bytes) -> tuple[int, bytes] | None:
    slots = (_decode_slot(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES))
    return max((slot for slot in slots if slot is not None), default=None)


class FixedRecord:
    """The writer's end. One writer a file.

    Args:
        path: the file; an old one is taken over, so that its sequence numbers go on.

    Raises:
        OSError: the file cannot be created or its pages cannot be allocated.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, 2 * SLOT_BYTES)
        except BaseException:
            os.close(self._fd)
            raise
        newest = _newest(os.pread(self._fd, 2 * SLOT_BYTES, 0))
        self._sequence = newest[0] if newest else 0

    def write(self, payload: Mapping[str, Any]) -> None:
        """Make `payload` the current record. Needs no free space.

        Raises:
            FormatError: the payload is larger than a slot.
            OSError: as `os.pwrite`.
        """
        slot = _encode_slot(self._sequence + 1, json.dumps(payload, separators=(",", ":")).encode())
        self._sequence += 1
        os.pwrite(self._fd, slot, (self._sequence % 2) * SLOT_BYTES)

    def close(self) -> None:
        """Close the file; the last record stays readable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_record(path: Path) -> dict[str, Any] | None:
    """The newest whole record of `path`, or None when there is no file or no record yet.

    Raises:
        OSError: the file is there and cannot be read.
    """
    for _ in range(_READ_ATTEMPTS):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        newest = _newest(data)
        if newest is not None:
            payload = json.loads(newest[1])
            return payload if isinstance(payload, dict) else None
        if not data.strip(b"\0 \n"):
            return None
    return None
