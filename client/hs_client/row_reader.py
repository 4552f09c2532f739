"""The second pass over a plan by row numbers: ranges of rows, in whatever order they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator

from hs_client.lines import Line
from hs_client.plan import Fate, Judged, Plan

__all__ = ["RowReader"]

_WANTED = bytes(fate in (Fate.SEND, Fate.REJECTED) for fate in range(256))
"""What `bytes.translate` takes to mark the rows that are read."""

_PIECE_ROWS = 1 << 16


class RowReader:
    """Reads the rows to send or to reject of ranges of row numbers. For one thread at a time.

    A range behind the last one is read on to; where a file can be entered, any range is found near its place. Only a
    compressed file is read from its beginning again for a range before the last one.

    Args:
        plan: of rows that are `numbered`.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._file = -1
        self._line = 0
        self._lines: Iterator[Line] = iter(())

    def fates(self, start: int, stop: int) -> Counter[Fate]:
        """How many rows of [start, stop) have which fate by the plan; blank lines have none."""
        found: Counter[Fate] = Counter()
        for index, first, last in self._files(start, stop):
            known = self._plan.fates[index]
            for fate in Fate:
                found[fate] += known.count(fate, first, last)
        return found

    def to_read(self, start: int, stop: int) -> int:
        """How many rows of [start, stop) are to be sent or rejected."""
        found = self.fates(start, stop)
        return found[Fate.SEND] + found[Fate.REJECTED]

    def reach(self, start: int, stop: int, count: int) -> int:
        """Where to end a piece of [start, stop) that begins at `start` and holds at most `count` rows to be read.

        Rows behind them that are not to be read belong to it, up to a number.
        """
        stop = min(stop, start + _PIECE_ROWS)
        for index, first, last in self._files(start, stop):
            wanted = self._plan.fates[index][first:last].translate(_WANTED)
            at = -1
            while (at := wanted.find(1, at + 1)) >= 0:
                if not count:
                    return self._plan.starts[index] + first + at
                count -= 1
        return stop

    def between(self, start: int, stop: int) -> Iterator[Judged]:
        """The samples to send or to reject of rows [start, stop), in order.

        Raises:
            BadPrompts: a file cannot be read, or has changed since the plan was made.
        """
        for index, first, last in self._files(start, stop):
            wanted = self._plan.fates[index][first:last].translate(_WANTED)
            if not any(wanted):
                continue
            file = self._plan.files[index]
            file.check_unchanged()
            for line in self._read(index, first + wanted.find(1), first + wanted.rfind(1)):
                if wanted[line.number - 1 - first]:
                    yield from self._plan.judge(index, line)
            file.check_unchanged()

    def _files(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Files with rows of [start, stop): index, and the range of their lines, counted from 0."""
        starts = self._plan.starts
        index = max(0, bisect_right(starts, start) - 1)
        while index < len(starts) and starts[index] < stop:
            first, last = max(start, starts[index]), min(stop, starts[index] + len(self._plan.fates[index]))
            if first < last:
                yield index, first - starts[index], last - starts[index]
            index += 1

    def _read(self, index: int, first: int, last: int) -> Iterator[Line]:
        """Lines `first` to `last` of a file, counted from 0 and both included; neither of them is blank."""
        known = self._plan.indexes[index]
        near = (0, 0) if known is None else known.before(first)
        if index != self._file or self._line > first or self._line < near[0]:
            self._file, self._line = index, near[0]
            self._lines = self._plan.lines(self._plan.files[index], start=near)
        # Blank lines are left out: what was read last is counted as where the file is.
        for line in self._lines:
            self._line = line.number
            if line.number > first:
                yield line
            if line.number > last:
                return
