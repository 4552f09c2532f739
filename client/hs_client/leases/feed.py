"""How far the rows are that a client holds: unread, on their way, or ended and not yet told. Pure logic."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from hs_client.leases.protocol import Ended
from hs_client.leases.ranges import Range, Ranges
from hs_client.tally import End

__all__ = ["Feed", "Given"]


@dataclass(frozen=True, slots=True)
class Given:
    """Rows that are given back. `unread` ones were never taken up; the samples of `withdrawn` ones, `samples` of them,
    wait to be sent and must be forgotten."""

    unread: list[Range] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    samples: int = 0

    @property
    def ranges(self) -> tuple[Range, ...]:
        """All of them."""
        return tuple(Ranges([*self.unread, *((number, number + 1) for number in self.withdrawn)]))


@dataclass(slots=True)
class _Row:
    open: int = 0
    ends: Counter[End] = field(default_factory=Counter)


class Feed:
    """Rows are leased, then read piece by piece; what was read has samples, each of which ends once. A row has ended
    when all of it was read and all its samples have ended."""

    def __init__(self) -> None:
        self._unread = Ranges()
        self._piece = Ranges()
        self._last = -1
        self._rows: dict[int, _Row] = {}
        self._ended = Ranges()
        self._ends: dict[int, Counter[End]] = {}

    @property
    def unread(self) -> int:
        """Rows that are leased and not taken up."""
        return self._unread.rows

    @property
    def quiet(self) -> bool:
        """Nothing that is held is still to end."""
        return not self._unread and not self._rows and not self._piece

    def lease(self, start: int, stop: int) -> None:
        """Rows [start, stop) are to be brought to an end.

        Raises:
            ValueError: some of them are held already.
        """
        held = Ranges([*self._unread, *self._ended, *self._piece, *((number, number + 1) for number in self._rows)])
        before = held.rows
        held.add(start, stop)
        if held.rows != before + stop - start:
            raise ValueError(f"rows {start} to {stop} are leased already")
        self._unread.add(start, stop)

    def next(self, reach: Callable[[int, int], int]) -> Range | None:
        """Take up the first unread rows, as far as `reach` says of a range [start, stop); None where there are none.

        The piece that was taken up before must be `through`.
        """
        first = next(iter(self._unread), None)
        if first is None:
            return None
        start, stop = first[0], reach(*first)
        self._unread.remove(start, stop)
        self._piece.add(start, stop)
        self._last = -1
        return start, stop

    def took(self, numbers: Iterable[int]) -> None:
        """Samples of rows of the piece were read, given by their row numbers, in ascending order."""
        for number in numbers:
            if number != self._last:
                self._leave_last()
            self._rows.setdefault(number, _Row()).open += 1
            self._last = number

    def through(self) -> None:
        """All samples of the piece were read."""
        self._leave_last()
        for number in self._rows:
            self._piece.remove(number, number + 1)
        for start, stop in self._piece:  # rows without samples to wait for
            self._ended.add(start, stop)
        self._piece.clear()

    def _leave_last(self) -> None:
        """No sample of the row that was read last follows: it has ended where all those that were read have."""
        row = self._rows.get(self._last)
        if row is not None and not row.open:
            self._end(self._last)

    def end(self, number: int, how: End) -> None:
        """A sample of this row has ended."""
        row = self._rows[number]
        row.open -= 1
        row.ends[how] += 1
        if not row.open and self._is_read(number):
            self._end(number)

    def _is_read(self, number: int) -> bool:
        """All samples of the row were read: those of the last one may go on in the next batch."""
        return number != self._last or number not in self._piece

    def _end(self, number: int) -> None:
        self._ends[number] = self._rows.pop(number).ends
        self._piece.remove(number, number + 1)
        self._ended.add(number, number + 1)

    def give_back(self, nodes: int, unsent: Mapping[int, int]) -> Given:
        """Give up the last of the rows that were not sent, but for one part of `nodes` + 1 of them, rounded down.

        Args:
            nodes: for how many others it is.
            unsent: by row number, how many samples wait to be sent; where these are all of a row, it can be given up.
        """
        waiting = sorted(number for number, count in unsent.items() if self._is_unsent(number, count))
        count = self._unread.rows + len(waiting)
        count -= count // (nodes + 1)
        unread = self._unread.take_last(count)
        count -= Ranges(unread).rows
        withdrawn = waiting[len(waiting) - count :]
        samples = sum(self._rows.pop(number).open for number in withdrawn)
        for number in withdrawn:
            self._piece.remove(number, number + 1)
        return Given(unread, withdrawn, samples)

    def _is_unsent(self, number: int, count: int) -> bool:
        row = self._rows.get(number)
        return row is not None and row.open == count and not row.ends and self._is_read(number)

    def ended(self) -> list[Ended]:
        """What has ended since the last call."""
        numbers = sorted(self._ends)
        found: list[Ended] = []
        for start, stop in self._ended:
            ends: Counter[End] = Counter()
            for number in numbers[bisect_left(numbers, start) : bisect_left(numbers, stop)]:
                ends.update(self._ends[number])
            found.append(
                Ended(
                    start=start,
                    stop=stop,
                    done=ends["done"] + ends["adopted"],
                    adopted=ends["adopted"],
                    failed=ends["failed"],
                    rejected=ends["rejected"],
                    elsewhere=ends["elsewhere"],
                )
            )
        self._ended.clear()
        self._ends.clear()
        return found
