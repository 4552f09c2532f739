"""A file with tensors of three widths and opaque bytes between them, and what the codecs with planes make of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hs_formats.hashing import xxh3_hex
from hs_formats.hsz_encode import Facts
from hs_formats.layout import Floats, Layout
from hs_formats.statistics import StatesStatistics
from hs_formats.stored import CODECS

__all__ = ["FLOATS", "LAYOUT", "STATISTICS", "files"]


def _words(count: int, bits: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Words from a linear congruence: exponents near each other, all else spread."""
    mixed = np.arange(count, dtype=np.uint64) * np.uint64(2654435761) % np.uint64(1 << 32)
    near = np.uint64((1 << bits - 2) - (1 << bits - 5)) + (mixed >> np.uint64(38 - bits))
    return near | (mixed & np.uint64(1)) << np.uint64(bits - 1)


_TENSORS = (("bfloat16", 520, 3, 3), ("float32", 40, 1, 6), ("float8_e4m3fn", 40, 1, 6))
_START = b"opaque bytes first".ljust(64, b".")


def _build() -> tuple[bytes, Layout]:
    data, tensors = bytearray(_START), list[Floats]()
    for dtype, rows, slots, channels in _TENSORS:
        floats = Floats(len(data), dtype, rows, slots, channels)
        tensors.append(floats)
        data += _words(rows * slots * channels, 8 * floats.words.itemsize).astype(floats.words.dtype).tobytes()
        data += b"between"
    return bytes(data), Layout(len(data), tuple(tensors))


FLOATS, LAYOUT = _build()


def _statistics() -> StatesStatistics:
    floats = LAYOUT.floats[0]
    statistics = StatesStatistics(floats.dtype, floats.rows, floats.slots, floats.channels)
    statistics.add(FLOATS[floats.start : floats.stop])
    return statistics


STATISTICS = _statistics().result()


def files() -> Mapping[str, bytes]:
    """File name → content."""
    facts = Facts(xxh3_hex([FLOATS]), STATISTICS)
    return {
        f"floats.{codec}.hsz": b"".join(CODECS[codec].encode([FLOATS], len(FLOATS), layout=LAYOUT, facts=lambda: facts))
        for codec in ("default", "fast")
    }
