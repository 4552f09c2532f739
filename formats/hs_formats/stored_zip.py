"""A zip of stored entries: laid out around buffers that are never copied, and read back strictly.

Only the shape that `ZipLayout` writes is read: no compression, encryption, data descriptors, comments or bytes outside
of entries and directory. A file that was cut or spliced anywhere therefore never looks whole, and hostile bytes meet a
parser with bounds instead of a forgiving one. Zip64 fields appear where a size or an offset needs them. Standard
library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from hs_formats.errors import FormatError

__all__ = ["ALIGNMENT", "ZipEntry", "ZipLayout", "read_directory", "read_entry"]

ALIGNMENT = 64
"""Every entry's data starts at a multiple of this."""

_U16 = 0xFFFF
_U32 = 0xFFFFFFFF
_MAX_DIRECTORY_BYTES = 1 << 20

_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")

_LOCAL_MAGIC = 0x04034B50
_CENTRAL_MAGIC = 0x02014B50
_END64_MAGIC = 0x06064B50
_LOCATOR64_MAGIC = 0x07064B50
_END_MAGIC = 0x06054B50

_DATE = 0x21  # 1 January 1980, the first day a zip can name: equal content gives equal bytes
_VERSION, _VERSION64 = 20, 45


def _as_bytes(buffer: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")  # a view with a zero dimension cannot be cast


class ZipLayout:
    """Collects the buffers of an archive; data is referred to, never copied."""

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []
        self._at = 0
        self._directory = bytearray()
        self._count = 0

    def _put(self, piece: bytes | memoryview) -> None:
        self.pieces.append(piece)
        self._at += len(piece)

    def add(self, name: str, data: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append an entry whose data is the concatenation of `data`; returns the file offset of that data."""
        encoded = name.encode("ascii")
        buffers = [_as_bytes(item) for item in data]
        size = sum(len(item) for item in buffers)
        checksum = 0
        for item in buffers:
            checksum = zlib.crc32(item, checksum)
        header_at = self._at
        large, far = size >= _U32, header_at >= _U32
        shown = _U32 if large else size
        zip64 = struct.pack("<HHQQ", 1, 16, size, size) if large else b""
        padding = -(header_at + _LOCAL.size + len(encoded) + len(zip64) + 4) % ALIGNMENT
        extra = zip64 + struct.pack("<2sH", b"FB", padding) + b"Z" * padding  # torch pads with the same field
        version = _VERSION64 if large or far else _VERSION
        common = (checksum, shown, shown, len(encoded))
        self._put(_LOCAL.pack(_LOCAL_MAGIC, version, 0, 0, 0, _DATE, *common, len(extra)) + encoded + extra)
        data_at = self._at
        for item in buffers:
            self._put(item)
        wide = ([size, size] if large else []) + ([header_at] if far else [])
        extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
        self._directory += _CENTRAL.pack(
            _CENTRAL_MAGIC,
            _VERSION64,
            version,
            0,
            0,
            0,
            _DATE,
            *common,
            len(extra),
            0,
            0,
            0,
            0,
            min(header_at, _U32),
        )
        self._directory += encoded + extra
        self._count += 1
        return data_at

    def close(self) -> None:
        """Append the directory; `pieces` is whole after this."""
        at, size = self._at, len(self._directory)
        self._put(bytes(self._directory))
        if at >= _U32:
            end = self._at
            self._put(
                _END64.pack(
                    _END64_MAGIC, _END64.size - 12, _VERSION64, _VERSION64, 0, 0, self._count, self._count, size, at
                )
            )
            self._put(_LOCATOR64.pack(_LOCATOR64_MAGIC, 0, end, 1))
        self._put(_END.pack(_END_MAGIC, 0, 0, self._count, self._count, size, min(at, _U32), 0))


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """A stored entry: where its data lies in the file."""

    name: str
    offset: int
    size: int
    crc32: int


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    data = b""
    while len(data) < size:
        more = file.read(size - len(data))
        if not more:
            raise FormatError(f"the file ends within {size} bytes of {offset}")
        data += more
    return data


def read_entry(file: IO[bytes], entry: ZipEntry, *, limit_bytes: int) -> bytes:
    """The data of a small entry, checked against its CRC.

    Raises:
        FormatError: it is larger than `limit_bytes`, or damaged.
    """
    if entry.size > limit_bytes:
        raise FormatError(f"{entry.name} has {entry.size} bytes, more than {limit_bytes}")
    data = _read_at(file, entry.offset, entry.size)
    if zlib.crc32(data) != entry.crc32:
        raise FormatError(f"{entry.name} is damaged: its CRC is wrong")
    return data


def read_directory(file: IO[bytes]) -> dict[str, ZipEntry]:
    """All entries by name, in file order.

    Args:
        file: seekable, opened for reading.

    Raises:
        FormatError: the file is cut, or is not an archive as `ZipLayout` writes it.
    """
    try:
        count, size, at = _read_end(file)
        if size > _MAX_DIRECTORY_BYTES:
            raise FormatError(f"the zip directory has {size} bytes, more than {_MAX_DIRECTORY_BYTES}")
        directory = _read_at(file, at, size)
        entries: dict[str, ZipEntry] = {}
        position = end_of_data = 0
        for _ in range(count):
            header_at, entry, position = _parse_central(directory, position)
            if entry.name in entries:
                raise FormatError(f"the zip names {_short(entry.name)} twice")
            if header_at > at:
                raise FormatError(f"{_short(entry.name)} lies behind the zip directory")
            if header_at < end_of_data:
                raise FormatError(f"{_short(entry.name)} overlaps the entry before it")
            entry = _locate(file, header_at, entry)
            end_of_data = entry.offset + entry.size
            if end_of_data > at:
                raise FormatError(f"{_short(entry.name)} reaches into the zip directory")
            entries[entry.name] = entry
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"not a whole zip file: {error}") from error
    if position != size:
        raise FormatError("the zip directory is longer than its entries")
    return entries


def _read_end(file: IO[bytes]) -> tuple[int, int, int]:
    """Count of entries, size and offset of the directory."""
    file_size = file.seek(0, os.SEEK_END)
    if file_size < _END.size:
        raise FormatError(f"not a whole zip file: {file_size} bytes")
    end_at = file_size - _END.size
    magic, disk, first_disk, here, count, size, at, comment = _END.unpack(_read_at(file, end_at, _END.size))
    if magic != _END_MAGIC or disk or first_disk or here != count or comment:
        raise FormatError("not a whole zip file: it does not end with an end record")
    if _U32 in (size, at) or count == _U16:
        locator_at = end_at - _LOCATOR64.size
        end_at = locator_at - _END64.size
        if end_at < 0:
            raise FormatError("not a whole zip file: the zip64 end record is missing")
        magic, disk, found_at, disks = _LOCATOR64.unpack(_read_at(file, locator_at, _LOCATOR64.size))
        if magic != _LOCATOR64_MAGIC or disk or found_at != end_at or disks != 1:
            raise FormatError("the zip64 locator does not fit the file")
        magic, record, _, _, disk, first_disk, here, count, size, at = _END64.unpack(
            _read_at(file, end_at, _END64.size)
        )
        if magic != _END64_MAGIC or record != _END64.size - 12 or disk or first_disk or here != count:
            raise FormatError("the zip64 end record does not fit the file")
    if at + size != end_at:
        raise FormatError("the zip directory does not lie before its end record")
    return count, size, at


def _parse_central(directory: bytes, position: int) -> tuple[int, ZipEntry, int]:
    """Offset of the local header, the entry without its data offset, and where the next record starts."""
    fields = _CENTRAL.unpack_from(directory, position)
    magic, _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes, comment, disk, *_, header_at = fields
    name_at = position + _CENTRAL.size
    extra_at = name_at + name_bytes
    end = extra_at + extra_bytes
    if magic != _CENTRAL_MAGIC or end > len(directory):
        raise FormatError("the zip directory is damaged")
    name = directory[name_at:extra_at].decode("ascii")
    if flags or method or comment or disk:
        raise FormatError(f"{_short(name)} is not a plainly stored zip entry")
    extra = directory[extra_at:end]
    wide_fields = (size == _U32) + (packed == _U32) + (header_at == _U32)
    if wide_fields:
        kind, length, *wide = struct.unpack(f"<HH{wide_fields}Q", extra)
        if (kind, length) != (1, 8 * wide_fields):
            raise FormatError(f"{_short(name)} has a wrong zip64 field")
        values = iter(wide)
        size = next(values) if size == _U32 else size
        packed = next(values) if packed == _U32 else packed
        header_at = next(values) if header_at == _U32 else header_at
    if packed != size:
        raise FormatError(f"{_short(name)} is stored in {packed} bytes but has {size}")
    return header_at, ZipEntry(name, -1, size, crc), end


def _locate(file: IO[bytes], header_at: int, entry: ZipEntry) -> ZipEntry:
    header = _read_at(file, header_at, _LOCAL.size)
    magic, _, flags, method, _, _, crc, _, _, name_bytes, extra_bytes = _LOCAL.unpack(header)
    name = _read_at(file, header_at + _LOCAL.size, name_bytes)
    if magic != _LOCAL_MAGIC or flags or method or crc != entry.crc32 or name != entry.name.encode():
        raise FormatError(f"{_short(entry.name)}: its local header is missing or contradicts the directory")
    return ZipEntry(entry.name, header_at + _LOCAL.size + name_bytes + extra_bytes, entry.size, crc)


def _short(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:80]}…")
