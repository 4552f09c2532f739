"""Sets of row numbers as sorted ranges [start, stop) that neither overlap nor touch. Pure logic."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import itemgetter

__all__ = ["Range", "Ranges"]

Range = tuple[int, int]
"""[start, stop)"""

_start, _stop = itemgetter(0), itemgetter(1)


class Ranges:
    """A set of row numbers; iterates over its ranges in ascending order. Equal where the same numbers are in it."""

    __slots__ = ("_ranges", "_rows")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._ranges: list[Range] = []
        self._rows = 0
        for start, stop in ranges:
            self.add(start, stop)

    @property
    def rows(self) -> int:
        """How many numbers are in it."""
        return self._rows

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ranges)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ranges) and self._ranges == other._ranges

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ranges({self._ranges})"

    def __contains__(self, row: int) -> bool:
        return self.covers(row, row + 1)

    def covers(self, start: int, stop: int) -> bool:
        """Every number of [start, stop) is in it; true of an empty range."""
        if start >= stop:
            return True
        at = bisect_right(self._ranges, start, key=_start) - 1
        return at >= 0 and stop <= self._ranges[at][1]

    def add(self, start: int, stop: int) -> None:
        """Have [start, stop); some of it may be there, and it may be empty."""
        if start >= stop:
            return
        first = bisect_left(self._ranges, start, key=_stop)  # the first that it touches
        last = bisect_right(self._ranges, stop, key=_start)
        touched = self._ranges[first:last]
        if touched:
            start, stop = min(start, touched[0][0]), max(stop, touched[-1][1])
        self._ranges[first:last] = [(start, stop)]
        self._rows += stop - start - sum(b - a for a, b in touched)

    def remove(self, start: int, stop: int) -> None:
        """Have nothing of [start, stop); some of it may be missing, and it may be empty."""
        if start >= stop:
            return
        first = bisect_right(self._ranges, start, key=_stop)  # the first that it overlaps
        last = bisect_left(self._ranges, stop, key=_start)
        touched = self._ranges[first:last]
        if not touched:
            return
        kept = [(touched[0][0], start), (stop, touched[-1][1])]
        left = [(a, b) for a, b in kept if a < b]
        self._ranges[first:last] = left
        self._rows += sum(b - a for a, b in left) - sum(b - a for a, b in touched)

    def take_first(self, count: int) -> Range | None:
        """Remove the first range, or its first `count` numbers, and return it; None where there is none."""
        if not self._ranges or count < 1:
            return None
        start, stop = self._ranges[0]
        stop = min(stop, start + count)
        self.remove(start, stop)
        return start, stop

    def take_last(self, count: int) -> list[Range]:
        """Remove the `count` greatest numbers, fewer where there are fewer; returns them in ascending order."""
        taken: list[Range] = []
        while count > 0 and self._ranges:
            start, stop = self._ranges[-1]
            start = max(start, stop - count)
            self.remove(start, stop)
            taken.append((start, stop))
            count -= stop - start
        return taken[::-1]

    def clear(self) -> None:
        """Have nothing."""
        self._ranges.clear()
        self._rows = 0
