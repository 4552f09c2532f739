"""What a stored part says about its slots: largest magnitude and finiteness of all rows, RMS of sampled ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["SlotStatistics", "StatesStatistics"]

_SAMPLED_ROWS = 16


class SlotStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of hidden states.

    Attributes:
        finite: no value of any row is NaN or infinite.
        max_abs: largest magnitude in any row; None unless finite.
        rms: root mean square of the sampled rows; None unless they are finite.
        rows: how many rows were sampled.
    """

    finite: bool
    max_abs: float | None
    rms: float | None
    rows: int


@dataclass(frozen=True, slots=True)
class _Bits:
    unsigned: str
    signed: str
    sign: int
    infinity: int


_BITS: Mapping[str, _Bits] = {
    "bfloat16": _Bits("<u2", "<i2", 0x8000, 0x7F80),
    "float16": _Bits("<u2", "<i2", 0x8000, 0x7C00),
    "float32": _Bits("<u4", "<i4", 0x80000000, 0x7F800000),
}


class StatesStatistics:
    """Collects the statistics of hidden states [rows, slots, channels] from blocks of whole rows.

    Two reductions over bit patterns, no copy: the largest pattern as a signed number is the largest positive float, the
    largest as an unsigned number the largest negative one. Every 64th row is sampled, at least 16 rows where there are.

    Args:
        dtype: ``bfloat16``, ``float16`` or ``float32``.
        rows: of the whole tensor.
        slots: of a row.
        channels: of a slot.
    """

    def __init__(self, dtype: str, rows: int, slots: int, channels: int) -> None:
        self._bits = _BITS[dtype]
        self._bfloat16 = dtype == "bfloat16"
        self._float = np.dtype("<f2" if dtype == "float16" else "<f4")
        self._shape = (-1, slots, channels)
        self._step = max(1, min(64, rows // _SAMPLED_ROWS))
        self._seen = 0
        self._sampled = 0
        self._most = np.zeros(slots, self._bits.unsigned)
        self._squares = np.zeros(slots)

    def add(self, block: bytes | bytearray | memoryview) -> None:
        """The next whole rows of all slots."""
        words = np.frombuffer(block, self._bits.unsigned).reshape(self._shape)
        if not len(words):
            return
        # Over the rows first: one call for all slots, on whole rows. Over the channels it would be one for each vector.
        positive = np.maximum(words.view(self._bits.signed).max(axis=0).max(axis=1), 0).astype(self._bits.unsigned)
        largest = words.max(axis=0).max(axis=1)
        negative = np.where(largest >= self._bits.sign, largest & (self._bits.sign - 1), 0)
        self._most = np.maximum(self._most, np.maximum(positive, negative)).astype(self._bits.unsigned)
        sampled = words[-self._seen % self._step :: self._step]
        if len(sampled):
            values = self._floats(sampled)
            with np.errstate(over="ignore", invalid="ignore"):
                wide = values.astype(np.float64)
                self._squares += np.multiply(wide, wide, out=wide).sum(axis=(0, 2))
        self._sampled += len(sampled)
        self._seen += len(words)

    def _floats(self, words: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._bfloat16:
            wide = words.astype("<u4")
            np.left_shift(wide, np.uint32(16), out=wide)
            return wide.view("<f4")
        return words.view(self._float) if words.flags.c_contiguous else words.copy().view(self._float)

    @property
    def finite(self) -> bool:
        """Whether no value so far is NaN or infinite."""
        return int(self._most.max(initial=0)) < self._bits.infinity

    def result(self) -> list[SlotStatistics]:
        """Of the rows added."""
        most = self._floats(self._most)
        count = self._sampled * self._shape[2]
        return [
            SlotStatistics(
                finite=int(self._most[slot]) < self._bits.infinity,
                max_abs=float(most[slot]) if int(self._most[slot]) < self._bits.infinity else None,
                rms=float(np.sqrt(squares / count)) if count and np.isfinite(squares) else None,
                rows=self._sampled,
            )
            for slot, squares in enumerate(self._squares)
        ]
