"""A small state file that can be rewritten when its file system is full.

Scratch is full exactly when its control files matter most, so these files are created once at their final size, with
every page allocated, and then written in place. A file holds two slots written in turn; each carries a sequence number
and a checksum over number, size and payload, so a reader takes the newest whole one and a torn write is never seen.
A slot is text, padded with spaces to `SLOT_BYTES` and ended by a newline::

    hs1 <sequence 12 digits> <payload bytes 6 digits> <crc32 8 hex>
    {"json": "payload"}

Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hs_formats.errors import FormatError

__all__ = ["SLOT_BYTES", "FixedRecord", "read_record"]

SLOT_BYTES = 4096
"""Size of one of the two slots; a payload must be some 40 bytes shorter."""

_HEADER = re.compile(rb"hs1 ([0-9]{12}) ([0-9]{6}) ([0-9a-f]{8})\n")
_HEADER_BYTES = len("hs1 000000000000 000000 00000000\n")
_READ_ATTEMPTS = 4


def _checksum(sequence: int, payload: bytes) -> int:
    # The number must be covered: a write torn inside it would else promote the slot's old payload to the newest.
    return zlib.crc32(payload, zlib.crc32(b"%012d %06d" % (sequence, len(payload))))


def _encode_slot(sequence: int, payload: bytes) -> bytes:
    if len(payload) > SLOT_BYTES - _HEADER_BYTES - 1:
        raise FormatError(f"a control record of {len(payload)} bytes does not fit its slot of {SLOT_BYTES}")
    header = b"hs1 %012d %06d %08x\n" % (sequence, len(payload), _checksum(sequence, payload))
    return (header + payload).ljust(SLOT_BYTES - 1) + b"\n"


def _decode_slot(slot: bytes) -> tuple[int, bytes] | None:
    match = _HEADER.match(slot)
    if match is None:
        return None
    sequence, size = int(match[1]), int(match[2])
    payload = slot[_HEADER_BYTES : _HEADER_BYTES + size]
    if len(payload) != size or _checksum(sequence, payload) != int(match[3], 16):
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
            newest = _newest(os.pread(self._fd, 2 * SLOT_BYTES, 0))
        except BaseException:
            os.close(self._fd)
            raise
        self._sequence = newest[0] if newest else 0

    def write(self, payload: Mapping[str, Any]) -> None:
        """Make `payload` the current record. Needs no free space.

        Raises:
            FormatError: the payload is larger than a slot, or no JSON.
            OSError: as `os.pwrite`; the record before stays the current one.
        """
        try:
            encoded = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise FormatError(f"a control record is no JSON: {error}") from error
        sequence = self._sequence + 1
        written = os.pwrite(self._fd, _encode_slot(sequence, encoded), (sequence % 2) * SLOT_BYTES)
        if written != SLOT_BYTES:
            raise OSError(errno.EIO, f"only {written} of {SLOT_BYTES} bytes written", str(self.path))
        # Only now: a failed write is repeated in the same slot and never touches the good one.
        self._sequence = sequence

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
        FormatError: the file holds something else than a record.
        OSError: the file is there and cannot be read.
    """
    data = b""
    for _ in range(_READ_ATTEMPTS):  # both slots look torn only when two writes overtook one read
        try:
            with path.open("rb") as file:
                data = file.read(2 * SLOT_BYTES)
        except FileNotFoundError:
            return None
        newest = _newest(data)
        if newest is not None:
            return _payload(path, newest[1])
        if not data.strip(b"\0"):
            return None
    if any(data[at : at + 4] == b"hs1 " for at in (0, SLOT_BYTES)):
        return None  # the very first write was cut
    raise FormatError(f"{path} is no control record of this version")


def _payload(path: Path, payload: bytes) -> dict[str, Any]:
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} holds a record that is no JSON: {error}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path} holds a record that is no JSON object")
    return record
