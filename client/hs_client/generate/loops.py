"""Answers that go round in circles. Pure logic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_PERIOD", "MIN_REPEATS", "MIN_TOKENS", "Loop", "repeated_tail"]

MIN_TOKENS = 64
"""Shorter repetitions are no loop: rules of a table, a row of dots."""
MIN_REPEATS = 4
MAX_PERIOD = 256

Loop = tuple[int, int]
"""Number of tokens that are repeated, and how often they stand there at least, the last time perhaps in part."""


def repeated_tail(ids: Sequence[int] | npt.NDArray[np.integer]) -> Loop | None:
    """The shortest n-gram whose repetition is the end of `ids`; None where they do not end in a loop.

    The end repeats with period p when each of its tokens equals the one p before. It is a loop when it has
    `MIN_TOKENS` or more and holds the n-gram `MIN_REPEATS` times or more; p is `MAX_PERIOD` at most.
    """
    tail = np.asarray(ids)
    n = len(tail)
    for period in range(1, min(MAX_PERIOD, n // MIN_REPEATS) + 1):
        span = period + _equal_at_end(tail[period:], tail[:-period])
        if span >= max(MIN_TOKENS, MIN_REPEATS * period):
            return period, span // period
    return None


def _equal_at_end(one: npt.NDArray[np.integer], other: npt.NDArray[np.integer]) -> int:
    if one[-1] != other[-1]:
        return 0  # most periods end here
    different = np.flatnonzero(one != other)
    return len(one) if not len(different) else len(one) - 1 - int(different[-1])
