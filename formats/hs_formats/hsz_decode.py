"""Decoder of ``.hsz``: any range of the original, or rows of one slot, without the rest of the file."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.errors import FormatError
from hs_formats.hashing import XXH3
from hs_formats.hsz_index import (
    HEAD_BYTES,
    TAIL_SUFFIX,
    FloatsSegment,
    Index,
    OpaqueSegment,
    Segment,
    index_bytes,
    read_head,
    read_tail,
)
from hs_formats.planes import merge_block, row_blocks
from hs_formats.zstd import frame_content

__all__ = ["HszFile", "ReadAt", "pread"]

Array = npt.NDArray[Any]
ReadAt = Callable[[int, int], bytes | memoryview]
"""Exactly so many bytes (second) from an offset (first)."""


class HszFile:
    """An ``.hsz`` file that is read where needed.

    Args:
        read_at: gives its bytes.
        file_bytes: its size.

    Attributes:
        index: what it says about itself, checked.

    Raises:
        FormatError: it is cut, damaged or of another format.
        OSError: it cannot be read.
    """

    def __init__(self, read_at: ReadAt, file_bytes: int) -> None:
        self._read_at = read_at
        if file_bytes < HEAD_BYTES + TAIL_SUFFIX.size:
            raise FormatError(f"not a whole hsz file: {file_bytes} bytes")
        codec = read_head(bytes(read_at(0, HEAD_BYTES)))
        tail_bytes = index_bytes(bytes(read_at(file_bytes - TAIL_SUFFIX.size, TAIL_SUFFIX.size)))
        if tail_bytes + HEAD_BYTES > file_bytes:
            raise FormatError("not a whole hsz file: its index is cut")
        self.index: Index = read_tail(bytes(read_at(file_bytes - tail_bytes, tail_bytes)), file_bytes=file_bytes)
        if self.index.codec != codec:
            raise FormatError(f"head and index of the hsz file name codec {codec} and {self.index.codec}")
        self._segments = [_decoder(segment, starts, read_at) for segment, starts in self.index.placed()]
        self._starts = [decoder.segment.start for decoder in self._segments]
        self._last: tuple[object, int, memoryview] | None = None

    @classmethod
    def of_bytes(cls, data: bytes | bytearray | memoryview) -> HszFile:
        """A file in memory."""
        view = memoryview(data)
        return cls(lambda at, count: view[at : at + count], len(view))

    @property
    def size(self) -> int:
        """Of the original in bytes."""
        return self.index.size

    @property
    def floats(self) -> list[FloatsSegment]:
        """The tensors that it holds as planes."""
        return [decoder.segment for decoder in self._segments if isinstance(decoder, _FloatsDecoder)]

    def read_into(self, start: int, out: memoryview | bytearray, *, verify: bool = True) -> None:
        """Bytes [start, start + len(out)) of the original.

        Args:
            start: byte of the original.
            out: writable; that of a tensor's rows is written to directly.
            verify: check each frame's own checksum; False for callers that check the whole against `Index.xxh3`.

        Raises:
            FormatError: the file is damaged.
            ValueError: the range is not within the original.
        """
        view = memoryview(out).cast("B")
        stop = start + len(view)
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"bytes {start} to {stop} of {self.size}")
        at = start
        while at < stop:
            decoder = self._segments[bisect_right(self._starts, at) - 1]
            group, first, behind = decoder.group_at(at)
            until = min(behind, stop)
            target = view[at - start : until - start]
            if (at, until) == (first, behind):
                decoder.decode(group, target, verify=verify)
            else:
                target[:] = self._group(decoder, group, behind - first)[at - first : until - first]
            at = until

    def _group(self, decoder: _OpaqueDecoder | _FloatsDecoder, group: int, size: int) -> memoryview:
        """A whole group, of which a part is wanted. Opaque ones are kept: who reads headers reads many small ranges."""
        if self._last is not None and self._last[:2] == (decoder, group):
            return self._last[2]
        whole = memoryview(bytearray(size))
        decoder.decode(group, whole, verify=True)
        if isinstance(decoder, _OpaqueDecoder):
            self._last = (decoder, group, whole)
        return whole

    def blocks(self) -> Iterator[memoryview]:
        """The original in order, in bounded blocks, each of its own memory; checked against its checksum at the end.

        Raises:
            FormatError: the file is damaged; blocks yielded before may be wrong.
        """
        digest = XXH3()
        for first, behind in self._groups():
            block = np.empty(behind - first, np.uint8).data
            self.read_into(first, block, verify=False)
            digest.update(block)
            yield block
        self._check(digest.hexdigest())

    def read_all(self, out: memoryview | bytearray) -> None:
        """The whole original into `out`, checked against its checksum.

        Raises:
            FormatError: the file is damaged; `out` is to be thrown away.
            ValueError: `out` is not of its size.
        """
        view = memoryview(out).cast("B")
        if len(view) != self.size:
            raise ValueError(f"{len(view)} bytes for an original of {self.size}")
        digest = XXH3()
        for first, behind in self._groups():
            self.read_into(first, view[first:behind], verify=False)
            digest.update(view[first:behind])
        self._check(digest.hexdigest())

    def _groups(self) -> Iterator[tuple[int, int]]:
        for decoder in self._segments:
            for group in range(decoder.segment.groups):
                yield decoder.segment.group_range(group)

    def _check(self, xxh3: str) -> None:
        if xxh3 != self.index.xxh3:
            raise FormatError("the content does not have the checksum that the file states: it is damaged")

    def read_slot(self, segment: FloatsSegment, slot: int, start: int, out: Array) -> None:
        """Rows [start, start + len(out)) of one slot of a tensor; no other slot is read.

        Args:
            segment: one of `floats`.
            slot: 0 to slots - 1.
            start: row.
            out: bit patterns [r, channels] of `segment.floats.words.dtype`; rows may be strided.

        Raises:
            FormatError: the file is damaged.
            ValueError: rows or slot are not in the tensor, or `out` does not fit it.
        """
        (decoder,) = (item for item in self._segments if isinstance(item, _FloatsDecoder) and item.segment is segment)
        stop = start + len(out)
        if not (0 <= slot < segment.slots and 0 <= start <= stop <= segment.rows):
            raise ValueError(f"rows {start} to {stop} of slot {slot}, of [{segment.rows}, {segment.slots}]")
        if out.shape[1:] != (segment.channels,) or out.dtype != segment.floats.words.dtype:
            raise ValueError(f"{out.dtype} [r, {out.shape[1:]}] for {segment.dtype} [r, {segment.channels}]")
        at = start
        while at < stop:
            group = at // segment.group_rows
            first, behind = segment.group_row_range(group)
            until = min(behind, stop)
            decoder.decode_slot(group, slot, at - first, out[at - start : until - start], verify=True)
            at = until


def pread(fd: int, at: int, count: int) -> bytes:
    """Exactly `count` bytes of an open file.

    Raises:
        FormatError: it ends before.
        OSError: it cannot be read.
    """
    data = os.pread(fd, count, at)
    while len(data) < count:
        more = os.pread(fd, count - len(data), at + len(data))
        if not more:
            raise FormatError(f"the file ends within {count} bytes of {at}")
        data += more
    return data


class _OpaqueDecoder:
    def __init__(self, segment: OpaqueSegment, starts: list[int], read_at: ReadAt) -> None:
        self.segment = segment
        self._starts = starts
        self._read_at = read_at

    def group_at(self, byte: int) -> tuple[int, int, int]:
        """The group with a byte of the original, and the bytes that it holds."""
        group = (byte - self.segment.start) // self.segment.chunk_bytes
        return group, *self.segment.group_range(group)

    def decode(self, group: int, out: memoryview, *, verify: bool) -> None:
        """All bytes of a group."""
        start, stop = self._starts[group], self._starts[group + 1]
        at = 0
        for block in frame_content(self._read_at(start, stop - start), len(out), verify=verify):
            out[at : at + len(block)] = block
            at += len(block)


class _FloatsDecoder:
    def __init__(self, segment: FloatsSegment, starts: list[int], read_at: ReadAt) -> None:
        self.segment = segment
        self._starts = starts
        self._read_at = read_at
        self._words = segment.floats.words
        self._offsets_read: Array | None = None

    def group_at(self, byte: int) -> tuple[int, int, int]:
        """The group with a byte of the original, and the bytes that it holds."""
        group = (byte - self.segment.start) // (self.segment.group_rows * self.segment.floats.row_bytes)
        return group, *self.segment.group_range(group)

    def decode(self, group: int, out: memoryview, *, verify: bool) -> None:
        """All bytes of a group."""
        segment = self.segment
        words = np.frombuffer(out, self._words.dtype).reshape(-1, segment.slots, segment.channels)
        first = self._first_frame(group, 0)
        base, end = self._starts[first], self._starts[first + segment.slots * self._words.itemsize]
        stored = memoryview(self._read_at(base, end - base))
        for slot in range(segment.slots):
            self._merge(self._first_frame(group, slot), stored, base, slot, 0, words[:, slot], len(words), verify)

    def decode_slot(self, group: int, slot: int, start: int, out: Array, *, verify: bool) -> None:
        """Rows of one slot; `start` counts within the group."""
        first = self._first_frame(group, slot)
        base, end = self._starts[first], self._starts[first + self._words.itemsize]
        first_row, behind = self.segment.group_row_range(group)
        stored = memoryview(self._read_at(base, end - base))
        self._merge(first, stored, base, slot, start, out, behind - first_row, verify)

    def _merge(
        self, first: int, stored: memoryview, base: int, slot: int, start: int, out: Array, rows: int, verify: bool
    ) -> None:
        """Rows from `start` of a chunk of `rows` rows; its frames, from number `first`, lie in `stored`."""
        channels = self.segment.channels
        offsets = self._offsets()[slot] if self.segment.has_offsets else None
        contents: list[_Plane] = []
        for number in range(first, first + self._words.itemsize):
            frame = stored[self._starts[number] - base : self._starts[number + 1] - base]
            contents.append(_Plane(frame_content(frame, rows * channels, verify=verify), rows, channels))
        stop = start + len(out)
        for begin, end in row_blocks(rows, channels):
            low, high = max(begin, start), min(end, stop)
            if low < high:
                planes = [plane.rows(begin, end)[low - begin : high - begin] for plane in contents]
                merge_block(planes, self._words, offsets, out[low - start : high - start])

    def _first_frame(self, group: int, slot: int) -> int:
        return self.segment.has_offsets + (group * self.segment.slots + slot) * self._words.itemsize

    def _offsets(self) -> Array:
        if self._offsets_read is None:
            segment = self.segment
            count = segment.slots * segment.channels
            frame = self._read_at(self._starts[0], segment.frames[0])
            data = b"".join(frame_content(frame, count * self._words.itemsize))
            planes = np.frombuffer(data, np.uint8).reshape(self._words.itemsize, count)
            words = np.ascontiguousarray(planes[::-1].T).view(self._words.dtype)
            self._offsets_read = words.reshape(segment.slots, segment.channels)
        return self._offsets_read


class _Plane:
    """A plane [rows, channels] in one piece or in blocks."""

    def __init__(self, blocks: list[memoryview], rows: int, channels: int) -> None:
        ranges = list(row_blocks(rows, channels))
        self._channels = channels
        self._blocks: dict[int, memoryview] = {}
        self._whole = memoryview(b"")
        if [len(block) for block in blocks] == [(stop - start) * channels for start, stop in ranges]:
            self._blocks = {start: block for (start, _), block in zip(ranges, blocks, strict=True)}
        else:
            self._whole = blocks[0] if len(blocks) == 1 else memoryview(b"".join(blocks))

    def rows(self, start: int, stop: int) -> Array:
        """Rows of one of the ranges of `row_blocks`."""
        channels = self._channels
        block = self._blocks.get(start)
        if block is None:
            block = self._whole[start * channels : stop * channels]
        return np.frombuffer(block, np.uint8).reshape(stop - start, channels)


def _decoder(segment: Segment, starts: list[int], read_at: ReadAt) -> _OpaqueDecoder | _FloatsDecoder:
    if isinstance(segment, FloatsSegment):
        return _FloatsDecoder(segment, starts, read_at)
    return _OpaqueDecoder(segment, starts, read_at)
