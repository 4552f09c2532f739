"""The holder of the leases: what a client says goes in, what clients are to be told comes out. Pure logic."""

from __future__ import annotations

from dataclasses import dataclass

from hs_client.errors import InputsDiffer, LeasesBroken, NodesApart
from hs_client.leases.protocol import (
    ClientMessage,
    Ended,
    Finish,
    Hello,
    HolderMessage,
    Lease,
    Over,
    Shrink,
    Shrunk,
    State,
    Want,
)
from hs_client.leases.table import LeaseTable

__all__ = ["Answers", "Holder", "Totals"]

Answers = list[tuple[str, HolderMessage]]
"""Names of nodes, and what to tell them, in this order."""


@dataclass(slots=True)
class Totals:
    """Samples that have ended, by how; `done` includes `adopted`. Exact also where clients were lost: those whose end
    was durable but not told any more are found by the next client, as `elsewhere`, or as done by its plan."""

    done: int = 0
    adopted: int = 0
    failed: int = 0
    rejected: int = 0
    elsewhere: int = 0

    def add(self, ended: Ended) -> None:
        """Some more."""
        self.done += ended.done
        self.adopted += ended.adopted
        self.failed += ended.failed
        self.rejected += ended.rejected
        self.elsewhere += ended.elsewhere


class Holder:
    """Deals out the rows. A node is one client from its `Hello` on until it is `lost`; a name may be used again then.

    Args:
        nodes: how many are expected to take part, for the size of leases.

    Attributes:
        first: the first client's `Hello`, whose plan is all clients' plan; None before it.
        table: who has which rows; None before the first `Hello`.
        totals: of samples.
    """

    def __init__(self, *, nodes: int = 1) -> None:
        self._nodes = nodes
        self.first: Hello | None = None
        self._first_node = ""
        self.table: LeaseTable | None = None
        self.totals = Totals()
        self._wanting: dict[str, bool] = {}
        self._told: set[str] = set()

    @property
    def finished(self) -> bool:
        """Every row has ended; False before the first `Hello`."""
        return self.table is not None and self.table.finished

    def heard(self, node: str, message: ClientMessage) -> Answers:
        """`node` says something; returns what is to be told to whom.

        Raises:
            InputsDiffer: a `Hello`, and the client has other prompts files than the first one. It has not joined.
            NodesApart: the same, and it stores to another place.
            LeasesBroken: it cannot say that now.
        """
        if isinstance(message, Hello):
            self._join(node, message)
        elif isinstance(message, State):
            return []
        elif isinstance(message, Over):
            return self.lost(node)
        else:
            table = self.table
            if table is None or node not in table.nodes:
                raise LeasesBroken(reason=f"{node} has not said hello")
            try:
                self._take(table, node, message)
            except ValueError as error:
                raise LeasesBroken(reason=error) from None
        return self._deal()

    def lost(self, node: str) -> Answers:
        """`node` is gone, or has ended: what it held goes to others. Returns what is to be told to whom."""
        self._wanting.pop(node, None)
        self._told.discard(node)
        if self.table is not None:
            self.table.lose(node)
        return self._deal()

    def _join(self, node: str, hello: Hello) -> None:
        if self.first is None or self.table is None:
            self.first, self._first_node = hello, node
            self.table = LeaseTable(hello.rows, nodes=self._nodes)
        elif (hello.rows, hello.inputs_hash) != (self.first.rows, self.first.inputs_hash):
            raise InputsDiffer(node=node, first=self._first_node)
        elif hello.marks and self.first.marks and not set(hello.marks) & set(self.first.marks):
            raise NodesApart(node=node, first=self._first_node, there=hello.dataset, here=self.first.dataset)
        try:
            self.table.join(node)
        except ValueError as error:
            raise LeasesBroken(reason=error) from None

    def _take(self, table: LeaseTable, node: str, message: Want | Ended | Shrunk) -> None:
        match message:
            case Want():
                self._wanting[node] = message.idle
            case Ended():
                table.ended(node, message.start, message.stop)
                self.totals.add(message)
            case Shrunk():
                table.shrunk(node, message.ranges)

    def _deal(self) -> Answers:
        table = self.table
        if table is None:
            return []
        answers: Answers = []
        if table.finished:
            told = [node for node in table.nodes if node not in self._told]
            self._told.update(told)
            self._wanting.clear()
            return [(node, Finish()) for node in told]
        # Those who have nothing to do come first.
        for node in sorted(self._wanting, key=lambda name: not self._wanting[name]):
            idle = sum(self._wanting.values())
            lease = table.grant(node, idle=idle)
            if lease is not None:
                del self._wanting[node]
                answers.append((node, Lease(start=lease[0], stop=lease[1])))
            elif self._wanting[node]:
                asked = table.steal(node)
                if asked is not None:
                    answers.append((asked, Shrink(nodes=idle)))
        return answers
