"""Encoder of ``.hsz``: a file in bounded pieces to zstd frames, floats as planes.

Each plane of each group is Huffman coded or left as it is, by the entropy of a sample: mantissas gain nothing, but
those of values that came from a shorter type do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.errors import FormatError
from hs_formats.hashing import XXH3
from hs_formats.hsz_index import FloatsSegment, Index, OpaqueSegment, Segment, head_frame, tail_frame
from hs_formats.layout import OPAQUE_BYTES, Floats, Layout
from hs_formats.planes import BLOCK_WORDS, Transform, block_rows, channel_offsets, row_blocks, split_block
from hs_formats.statistics import SlotStatistics
from hs_formats.zstd import RawFrame, compressed_frame, huffman_frame, raw_frame

__all__ = ["Facts", "encode"]

Array = npt.NDArray[Any]

_OFFSET_ROWS = 64
_SAMPLE_WORDS = 1 << 12
_CODED_BELOW_BITS = 7.8
"""Above this entropy of a byte the Huffman coder saves less than it costs."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller found out about the original while it handed it over."""

    xxh3: str
    statistics: Sequence[SlotStatistics] = field(default=())


def encode(
    blocks: Iterable[bytes | bytearray | memoryview],
    layout: Layout,
    *,
    codec: str,
    transform: Transform,
    facts: Callable[[], Facts] | None = None,
) -> Iterator[bytes | memoryview]:
    """The stored file, as pieces to be written one after the other. Each piece stays as it is once yielded.

    Args:
        blocks: the original in blocks of any size; those that are just the pieces of `layout` are not copied, and each
            must stay as it is until the next is asked for.
        layout: of the original.
        codec: name to be stored.
        transform: for the floats.
        facts: called after the last block, where the caller knows them; else the checksum is made here.

    Raises:
        FormatError: the blocks do not add up to the layout's size.
    """
    feed = _Feed(blocks, layout.size, hashing=facts is None)
    yield head_frame(codec)
    segments: list[Segment] = []
    coder: _FloatsCoder | None = None
    for start, count, floats in layout.pieces():
        piece = feed.take(count)
        frames: Iterable[bytes | memoryview]
        if floats is None:
            segment = segments[-1] if segments else None
            if not isinstance(segment, OpaqueSegment):
                segment = OpaqueSegment(start=start, stop=start, chunk_bytes=OPAQUE_BYTES, frames=[])
                segments.append(segment)
            segments[-1] = OpaqueSegment(
                start=segment.start, stop=start + count, chunk_bytes=OPAQUE_BYTES, frames=segment.frames
            )
            frames = [compressed_frame(piece)]
        else:
            if coder is None or coder.floats is not floats:
                coder = _FloatsCoder(floats, transform)
                segments.append(coder.segment)
            frames = coder.frames(piece)
        lengths = segments[-1].frames
        for frame in frames:
            lengths.append(len(frame))
            yield frame
    feed.end()
    known = Facts(feed.xxh3()) if facts is None else facts()
    yield tail_frame(
        Index(codec=codec, size=layout.size, xxh3=known.xxh3, segments=segments, statistics=list(known.statistics))
    )


class _Feed:
    """Blocks of any size, given out in the sizes that are wanted."""

    def __init__(self, blocks: Iterable[bytes | bytearray | memoryview], size: int, *, hashing: bool) -> None:
        self._blocks = iter(blocks)
        self._size = size
        self._rest = memoryview(b"")
        self._seen = 0
        self._digest = XXH3() if hashing else None

    def _next(self) -> bool:
        for block in self._blocks:
            self._rest = memoryview(block).cast("B")
            self._seen += len(self._rest)
            if self._digest is not None:
                self._digest.update(self._rest)
            if len(self._rest):
                return True
        return False

    def take(self, count: int) -> memoryview:
        """The next `count` bytes."""
        if not len(self._rest):
            self._next()
        if len(self._rest) >= count:
            piece, self._rest = self._rest[:count], self._rest[count:]
            return piece
        gathered, at = bytearray(count), 0
        while at < count:
            if not len(self._rest) and not self._next():
                raise FormatError(f"{self._seen} bytes to compress where {self._size} were announced")
            part = self._rest[: count - at]
            gathered[at : at + len(part)] = part
            at += len(part)
            self._rest = self._rest[len(part) :]
        return memoryview(gathered)

    def end(self) -> None:
        """Raise FormatError if anything is left."""
        if len(self._rest) or self._next():
            raise FormatError(f"{self._seen} bytes to compress where {self._size} were announced")

    def xxh3(self) -> str:
        """Of all bytes."""
        return "" if self._digest is None else self._digest.hexdigest()


class _HuffmanPlane:
    """A plane [rows, channels] that is filled block by block and coded as a whole."""

    def __init__(self, shape: tuple[int, ...], blocks: Sequence[tuple[int, int]]) -> None:
        self._whole = np.empty(shape, np.uint8)
        self.targets: list[Array] = [self._whole[start:stop] for start, stop in blocks]

    def frame(self) -> bytes | memoryview:
        return huffman_frame(self._whole.data)


class _RawPlane:
    """The same, left as it is: its blocks are those of the frame."""

    def __init__(self, shape: tuple[int, ...], blocks: Sequence[tuple[int, int]]) -> None:
        channels = shape[1]
        self._frame = RawFrame(shape[0] * channels, block_rows(channels) * channels)
        self.targets: list[Array] = [
            np.frombuffer(view, np.uint8).reshape(stop - start, channels)
            for view, (start, stop) in zip(self._frame.blocks, blocks, strict=True)
        ]

    def filled(self, number: int) -> None:
        """To be called for each block, in order, while it is in the cache."""
        self._frame.filled(number)

    def frame(self) -> bytes | memoryview:
        return self._frame.close()


class _FloatsCoder:
    """One tensor, group by group."""

    def __init__(self, floats: Floats, transform: Transform) -> None:
        self.floats = floats
        self.segment = FloatsSegment(
            start=floats.start, dtype=floats.dtype, rows=floats.rows, slots=floats.slots, channels=floats.channels,
            transform=transform, group_rows=min(floats.group_rows, floats.rows), frames=[],
        )  # fmt: skip
        self._offsets: Array | None = None

    def frames(self, piece: memoryview) -> Iterator[bytes | memoryview]:
        """Frames of a group of whole rows."""
        floats = self.floats
        words = np.frombuffer(piece, floats.words.dtype).reshape(-1, floats.slots, floats.channels)
        if self.segment.has_offsets and self._offsets is None:
            self._offsets = self._find_offsets(words)
            yield huffman_frame(byte_planes(self._offsets))
        coded = self._worth_coding(words)
        if words.size <= BLOCK_WORDS:
            yield from self._all_slots(words, coded)
            return
        for slot in range(floats.slots):
            yield from self._slot(words[:, slot], None if self._offsets is None else self._offsets[slot], coded[slot])

    def _find_offsets(self, words: Array) -> Array:
        floats = self.floats
        sample = words[_spread(len(words), _OFFSET_ROWS)]
        flat = sample.reshape(len(sample), -1)
        return channel_offsets(flat, floats.words, rows=floats.rows).reshape(floats.slots, floats.channels)

    def _split_slots(self, words: Array) -> list[Array]:
        """Planes [slots, rows, channels] of few words [rows, slots, channels]."""
        by_slot = words.transpose(1, 0, 2)
        planes = [np.empty(by_slot.shape, np.uint8) for _ in range(self.floats.words.itemsize)]
        split_block(by_slot, self.floats.words, None if self._offsets is None else self._offsets[:, None], planes)
        return planes

    def _all_slots(self, words: Array, coded: list[list[bool]]) -> Iterator[bytes | memoryview]:
        """A group so small that the calls would cost more than the work if they were made for each slot."""
        block_bytes = block_rows(self.floats.channels) * self.floats.channels
        planes = self._split_slots(words)
        for slot, worth in enumerate(coded):
            for plane, coding in zip(planes, worth, strict=True):
                content = plane[slot].reshape(-1).data
                yield huffman_frame(content) if coding else raw_frame(content, block_bytes)

    def _slot(self, words: Array, offsets: Array | None, coded: list[bool]) -> Iterator[bytes | memoryview]:
        blocks = list(row_blocks(*words.shape))
        planes = [(_HuffmanPlane if coding else _RawPlane)(words.shape, blocks) for coding in coded]
        raw = [plane for plane in planes if isinstance(plane, _RawPlane)]
        for number, (start, stop) in enumerate(blocks):
            split_block(words[start:stop], self.floats.words, offsets, [plane.targets[number] for plane in planes])
            for left in raw:
                left.filled(number)
        for plane in planes:
            yield plane.frame()

    def _worth_coding(self, words: Array) -> list[list[bool]]:
        """Of each slot, whether each plane is."""
        slots = self.floats.slots
        planes = self._split_slots(words[_spread(len(words), max(1, _SAMPLE_WORDS // words.shape[2]))])
        samples = np.concatenate([plane.reshape(slots, -1) for plane in planes])
        worth: list[list[bool]] = (entropy_bits(samples).reshape(-1, slots).T < _CODED_BELOW_BITS).tolist()
        return worth


def _spread(rows: int, count: int) -> slice:
    """About `count` of `rows` rows, evenly."""
    return slice(0, None, max(1, rows // count))


def entropy_bits(samples: Array) -> Array:
    """Bits a byte that a perfect coder of single bytes needs, as far as samples [k, n] of k planes can tell."""
    count, size = samples.shape
    numbered = samples + (np.arange(count) << 8)[:, None]
    counts = np.bincount(numbered.ravel(), minlength=count << 8).reshape(count, 256)
    seen: Array = math.log2(size) - (counts * np.log2(np.maximum(counts, 1))).sum(axis=1) / size
    # A sample looks less random than the whole; the correction is Miller's.
    seen += (np.count_nonzero(counts, axis=1) - 1) / (2 * math.log(2) * size)
    return seen


def byte_planes(words: Array) -> bytes:
    """Bytes of `words`, all most significant ones first."""
    itemsize = words.dtype.itemsize
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, itemsize)[:, ::-1].T).tobytes()
