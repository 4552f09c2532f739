"""Floats to byte planes and back: what makes hidden states compressible. Bit patterns only, so lossless for any bits.

Of a hidden state's bits the exponent is worth coding: per channel and token the values are nearly normal, so about 2.6
of its 8 bits carry information, while sign and mantissa are as good as random. `exponent` therefore subtracts from each
channel's bit patterns an offset near their median (modulo the word, so that any bits come back), moves the sign bit
below the exponent, and puts the exponents into a plane of their own. `bytes` merely separates the bytes. Planes are
numbered from the most significant.

All work is done in blocks of rows that fit the cache, into buffers that are kept one set for each thread.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "BLOCK_WORDS",
    "WORDS",
    "Transform",
    "Words",
    "block_rows",
    "channel_offsets",
    "merge_block",
    "row_blocks",
    "split_block",
]

Array = npt.NDArray[Any]
Transform = Literal["exponent", "bytes"]

BLOCK_WORDS = 1 << 16
"""Words handled at once: their planes and temporaries stay within 512 KiB of cache."""

_NONE_BELOW_ROWS = 32
_OCTAVES_BELOW_ROWS = 512
"""In shorter tensors any offsets, or finer ones than whole octaves, cost more space than they save."""

_FRACTION_BITS = 1


@dataclass(frozen=True, slots=True)
class Words:
    """How a float type lies in its word: bytes of the word, bits of the mantissa."""

    itemsize: int
    mantissa_bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the bit patterns: little-endian, unsigned."""
        return np.dtype(f"<u{self.itemsize}")

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return (1 << 8 * self.itemsize - 1) - 1


WORDS: Mapping[str, Words] = {
    "bfloat16": Words(2, 7),
    "float16": Words(2, 10),
    "float32": Words(4, 23),
    "float8_e4m3fn": Words(1, 3),
    "float8_e5m2": Words(1, 2),
}
"""By torch's name of the type."""

_SIGN_AND_LOW = np.uint16(0x807F)
_TWICE = np.uint16(0x0101)


class _Scratch(threading.local):
    """Temporaries of one thread, grown to the largest block it met."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._shaped: dict[str, Array] = {}

    def get(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        last = self._shaped.get(name)
        if last is not None and last.shape == shape:  # as for all blocks of a tensor but the last
            return last
        count = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or len(array) < count:
            array = self._arrays[name] = np.empty(max(count, BLOCK_WORDS), dtype)
        shaped = self._shaped[name] = array[:count].reshape(shape)
        return shaped


_scratch = _Scratch()


def block_rows(channels: int) -> int:
    """Rows of a block."""
    return max(1, BLOCK_WORDS // channels)


def row_blocks(rows: int, channels: int) -> Iterator[tuple[int, int]]:
    """The blocks of a chunk, as row ranges."""
    step = block_rows(channels)
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def channel_offsets(sample: Array, words: Words, *, rows: int) -> Array:
    """Offsets [H] for `exponent` from bit patterns [r, H] of at most 255 rows of a tensor of `rows` rows.

    Each is the median magnitude, found by bisection over the bits: many times faster here than sorting.
    """
    mantissa_bits = words.mantissa_bits
    fine_bits = 0 if rows < _OCTAVES_BELOW_ROWS else min(mantissa_bits, _FRACTION_BITS)
    offsets = np.zeros(sample.shape[1], words.dtype)
    if rows < _NONE_BELOW_ROWS:
        return offsets
    magnitudes = sample & words.dtype.type(words.magnitude)
    reached = np.empty(sample.shape, np.bool_)
    for bit in range(8 * words.itemsize - 2, mantissa_bits - fine_bits - 1, -1):
        candidate = offsets | words.dtype.type(1 << bit)
        np.greater_equal(magnitudes, candidate, out=reached)
        enough = np.add.reduce(reached.view(np.uint8), axis=0, dtype=np.uint8) >= (len(sample) + 1) // 2
        offsets = np.where(enough, candidate, offsets)
    return offsets


def split_block(block: Array, words: Words, offsets: Array | None, planes: Sequence[Array]) -> None:
    """Bit patterns [..., H] to planes.

    Args:
        block: the words, strided in any way.
        words: their type.
        offsets: for the transform `exponent`, of a shape that goes with `block`; None for `bytes`.
        planes: one uint8 array of `block`'s shape for each byte of the word, written to.
    """
    shape = block.shape
    if words.itemsize == 1:
        if offsets is None:
            planes[0][...] = block
        else:
            np.subtract(block, offsets, out=planes[0])
        return
    if words.itemsize == 4:
        wide = block
        if offsets is not None:
            wide = _scratch.get("wide", "<u4", shape)
            np.subtract(block, offsets, out=wide)
        shifted = _scratch.get("shifted", "<u4", shape)
        np.right_shift(wide, np.uint32(8), out=shifted)
        planes[2][...] = shifted
        planes[3][...] = wide
        high = _scratch.get("high", "<u2", shape)
        np.right_shift(wide, np.uint32(16), out=shifted)
        high[...] = shifted
        _split_16(high, None, planes, exponent=offsets is not None)
        return
    _split_16(block, offsets, planes, exponent=offsets is not None)


def _split_16(block: Array, offsets: Array | None, planes: Sequence[Array], *, exponent: bool) -> None:
    shape = block.shape
    if not exponent:
        np.right_shift(block, np.uint16(8), out=planes[0], casting="unsafe")
        planes[1][...] = block
        return
    word, shifted = _scratch.get("word16", "<u2", shape), _scratch.get("shifted16", "<u2", shape)
    if offsets is None:
        word[...] = block
    else:
        np.subtract(block, offsets, out=word)
    # Casts by assignment, which keeps the low byte: with `out` of another type the operands would be copied to buffers.
    np.right_shift(word, np.uint16(7), out=shifted)
    planes[0][...] = shifted
    np.bitwise_and(word, _SIGN_AND_LOW, out=word)
    np.right_shift(word, np.uint16(8), out=shifted)
    np.bitwise_or(word, shifted, out=word)
    planes[1][...] = word


def merge_block(planes: Sequence[Array], words: Words, offsets: Array | None, out: Array) -> None:
    """Inverse of `split_block`: planes to the bit patterns `out` [r, H], whose rows may be strided."""
    if words.itemsize == 1:
        if offsets is None:
            out[...] = planes[0]
        else:
            np.add(planes[0], offsets, out=out)
        return
    if words.itemsize == 2:
        _merge_16(planes, offsets, out, exponent=offsets is not None)
        return
    shape = (out.shape[0], out.shape[1])
    high = _scratch.get("high", "<u2", shape)
    _merge_16(planes, None, high, exponent=offsets is not None)
    wide, shifted = _scratch.get("wide", "<u4", shape), _scratch.get("shifted", "<u4", shape)
    wide[...] = high
    for plane in planes[2:]:
        np.left_shift(wide, np.uint32(8), out=wide)
        shifted[...] = plane
        np.bitwise_or(wide, shifted, out=wide)
    if offsets is None:
        out[...] = wide
    else:
        np.add(wide, offsets, out=out)


def _merge_16(planes: Sequence[Array], offsets: Array | None, out: Array, *, exponent: bool) -> None:
    shape = (out.shape[0], out.shape[1])
    word, low = _scratch.get("word16", "<u2", shape), _scratch.get("shifted16", "<u2", shape)
    word[...] = planes[0]
    low[...] = planes[1]
    if exponent:
        np.multiply(word, np.uint16(1 << 7), out=word)  # faster than a shift
        np.multiply(low, _TWICE, out=low)
        np.bitwise_and(low, _SIGN_AND_LOW, out=low)
    else:
        np.multiply(word, np.uint16(1 << 8), out=word)
    if offsets is None:
        np.bitwise_or(word, low, out=out)
    else:
        np.bitwise_or(word, low, out=word)
        np.add(word, offsets, out=out)
