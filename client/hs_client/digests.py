"""A table of sixteen-byte digests with a number each, in some forty bytes an entry where a dict takes two hundred."""

from __future__ import annotations

import struct
from array import array

__all__ = ["DigestTable"]

_TWO = struct.Struct("<QQ")
_FIRST_SLOTS = 1 << 10


class DigestTable:
    """Digest → number from 0 to 2^64 - 1. Entries are never removed."""

    __slots__ = ("_count", "_high", "_low", "_mask", "_values", "_zero")

    def __init__(self) -> None:
        self._count = 0
        self._zero: int | None = None  # of the digest that is all zero, which marks empty slots
        self._make(_FIRST_SLOTS)

    def _make(self, slots: int) -> None:
        self._mask = slots - 1
        self._high, self._low, self._values = (array("Q", bytes(8 * slots)) for _ in range(3))

    def _slot(self, high: int, low: int) -> int:
        """Where the pair is, or the empty slot where it belongs."""
        highs, lows, mask = self._high, self._low, self._mask
        at = high & mask
        while lows[at] != low or highs[at] != high:
            if not lows[at] and not highs[at]:
                break
            at = (at + 1) & mask
        return at

    def setdefault(self, key: bytes, value: int) -> int:
        """The number of `key`, which becomes `value` where it has none."""
        high, low = _TWO.unpack(key)
        if not high and not low:
            self._zero = value if self._zero is None else self._zero
            return self._zero
        at = self._slot(high, low)
        if self._low[at] or self._high[at]:
            return self._values[at]
        self._put(at, high, low, value)
        return value

    def __setitem__(self, key: bytes, value: int) -> None:
        high, low = _TWO.unpack(key)
        if not high and not low:
            self._zero = value
            return
        at = self._slot(high, low)
        if self._low[at] or self._high[at]:
            self._values[at] = value
        else:
            self._put(at, high, low, value)

    def _put(self, at: int, high: int, low: int, value: int) -> None:
        self._high[at], self._low[at], self._values[at] = high, low, value
        self._count += 1
        if 5 * self._count > 3 * (self._mask + 1):
            self._grow()

    def _grow(self) -> None:
        old = zip(self._high, self._low, self._values, strict=True)
        self._make(2 * (self._mask + 1))
        for high, low, value in old:
            if high or low:
                at = self._slot(high, low)
                self._high[at], self._low[at], self._values[at] = high, low, value

    def add(self, key: bytes) -> None:
        """Have `key`, with 0 where it is new."""
        self.setdefault(key, 0)

    def get(self, key: bytes) -> int | None:
        """The number of `key`, None where there is none."""
        high, low = _TWO.unpack(key)
        if not high and not low:
            return self._zero
        at = self._slot(high, low)
        return self._values[at] if self._low[at] or self._high[at] else None

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return self._count + (self._zero is not None)
