"""Who has which rows: each is free, held by one node, or ended. Pure logic."""

from __future__ import annotations

from collections.abc import Iterable

from hs_client.leases.ranges import Range, Ranges

__all__ = ["LeaseTable"]

_LEAST_ROWS = 16
_SHARE = 2
"""A lease is one part in so many of what each node would get if all that is free were dealt out now."""


class LeaseTable:
    """All rows of an input, and which node holds which of them. Nodes are told apart by their names.

    Leases get smaller as free rows get fewer (guided self-scheduling), so that nodes of unequal speed end together;
    what is left of the difference is stolen: `steal` names a node that holds unsent rows, and `shrunk` takes back what
    that node gives.

    Args:
        rows: how many there are; their numbers are 0 to `rows` - 1.
        nodes: how many are expected to take part, for the size of leases.
        least: rows of a lease, as long as there are so many in a row.
    """

    def __init__(self, rows: int, *, nodes: int = 1, least: int = _LEAST_ROWS) -> None:
        self.rows = rows
        self._expected = max(1, nodes)
        self._least = max(1, least)
        self._free = Ranges([(0, rows)])
        self._ended = Ranges()
        self._held: dict[str, Ranges] = {}
        self._asked: set[str] = set()
        self._dry: set[str] = set()

    @property
    def free(self) -> int:
        """Rows that nobody holds and that have not ended."""
        return self._free.rows

    @property
    def done(self) -> int:
        """Rows that have ended."""
        return self._ended.rows

    @property
    def finished(self) -> bool:
        """Every row has ended."""
        return self._ended.rows == self.rows

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that have joined and were not lost."""
        return list(self._held)

    def held(self, node: str) -> int:
        """Rows that `node` holds; 0 where it has not joined."""
        found = self._held.get(node)
        return 0 if found is None else found.rows

    def join(self, node: str) -> None:
        """A node takes part from now on, with nothing.

        Raises:
            ValueError: it does so already.
        """
        if node in self._held:
            raise ValueError(f"{node} has joined already")
        self._held[node] = Ranges()

    def grant(self, node: str, *, idle: int = 1) -> Range | None:
        """Lease free rows [start, stop) to `node`; None where none are free.

        `idle`: so many nodes, this one included, have nothing to do; it gets no more than its part.

        Raises:
            KeyError: it has not joined.
        """
        held = self._held[node]
        nodes = max(self._expected, len(self._held))
        count = max(self._least, self._free.rows // (_SHARE * nodes))
        found = self._free.take_first(min(count, -(-self._free.rows // max(1, idle))))
        if found is not None:
            held.add(*found)
            self._dry.discard(node)
        return found

    def ended(self, node: str, start: int, stop: int) -> None:
        """`node` has brought rows [start, stop) to an end.

        Raises:
            ValueError: it does not hold all of them.
        """
        self._give_up(node, [(start, stop)])
        self._ended.add(start, stop)

    def steal(self, idle: str) -> str | None:
        """Which node to ask for rows that it has not sent, on behalf of `idle`; None where nobody is to be asked now.

        It is the one that holds most. It is not named again before it has answered (`shrunk`), nor, where it had
        nothing to give, before it has got a new lease.
        """
        asked = [name for name in self._held if name != idle and name not in self._dry and name not in self._asked]
        node = max(asked, key=self.held, default=None)
        if node is None or not self.held(node):
            return None
        self._asked.add(node)
        return node

    def shrunk(self, node: str, ranges: Iterable[Range]) -> None:
        """`node` gives these rows back: the answer to what `steal` made somebody ask. None are its answer, too.

        Raises:
            ValueError: it does not hold all of them.
        """
        given = list(ranges)
        self._give_up(node, given)
        for start, stop in given:
            self._free.add(start, stop)
        self._asked.discard(node)
        if not given:
            self._dry.add(node)

    def lose(self, node: str) -> int:
        """`node` is gone: all that it holds is free again. Returns how many rows that are; 0 for one not joined."""
        held = self._held.pop(node, Ranges())
        for start, stop in held:
            self._free.add(start, stop)
        self._asked.discard(node)
        self._dry.discard(node)
        return held.rows

    def _give_up(self, node: str, ranges: Iterable[Range]) -> None:
        held = self._held.get(node, Ranges())
        given = list(ranges)
        for start, stop in given:
            if start > stop or not held.covers(start, stop):
                raise ValueError(f"{node} does not hold rows {start} to {stop}")
        for start, stop in given:
            held.remove(start, stop)
