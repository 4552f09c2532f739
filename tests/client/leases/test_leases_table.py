"""Whatever nodes do and however they end, every row is free, held by one of them, or ended; and all of them end."""

from __future__ import annotations

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from hs_client.leases.ranges import Ranges
from hs_client.leases.table import LeaseTable

ROWS = 150


class Nodes(RuleBasedStateMachine):
    """The table beside a plain list of who has which row."""

    nodes = Bundle("nodes")

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(ROWS, nodes=2, least=4)
        self.owner = ["free"] * ROWS
        self.names = 0

    def rows_of(self, owner: str) -> list[int]:
        return [row for row, name in enumerate(self.owner) if name == owner]

    def give(self, row_range: tuple[int, int], was: str, now: str) -> None:
        start, stop = row_range
        assert self.owner[start:stop] == [was] * (stop - start)
        self.owner[start:stop] = [now] * (stop - start)

    @rule(target=nodes)
    def join(self) -> str:
        self.names += 1
        name = f"n{self.names}"
        self.table.join(name)
        return name

    @rule(node=nodes, idle=st.integers(0, 4))
    def grant(self, node: str, idle: int) -> None:
        free = len(self.rows_of("free"))
        found = self.table.grant(node, idle=idle)
        assert (found is None) == (free == 0)
        if found is not None:
            assert found[1] - found[0] <= max(4, free)
            self.give(found, "free", node)

    @rule(node=nodes, data=st.data())
    def end(self, node: str, data: st.DataObject) -> None:
        held = list(Ranges((row, row + 1) for row in self.rows_of(node)))
        if not held:
            return
        start, stop = data.draw(st.sampled_from(held))
        a = data.draw(st.integers(start, stop - 1))
        b = data.draw(st.integers(a + 1, stop))
        self.table.ended(node, a, b)
        self.give((a, b), node, "ended")

    @rule(node=nodes, data=st.data())
    def steal(self, node: str, data: st.DataObject) -> None:
        asked = self.table.steal(node)
        if asked is None:
            return
        assert asked != node
        held = self.rows_of(asked)
        assert held
        given = data.draw(st.sets(st.sampled_from(held)))
        ranges = list(Ranges((row, row + 1) for row in given))
        self.table.shrunk(asked, ranges)
        for each in ranges:
            self.give(each, asked, "free")

    @rule(node=consumes(nodes))
    def lose(self, node: str) -> None:
        held = self.rows_of(node)
        assert self.table.lose(node) == len(held)
        for row in held:
            self.owner[row] = "free"

    @rule(node=nodes, row=st.integers(0, ROWS - 1))
    def claim_what_is_not_held(self, node: str, row: int) -> None:
        if self.owner[row] != node:
            with pytest.raises(ValueError, match=f"{node} does not hold rows {row} to {row + 1}"):
                self.table.ended(node, row, row + 1)
            with pytest.raises(ValueError, match="does not hold"):
                self.table.shrunk(node, [(row, row + 1)])

    @invariant()
    def counts_are_right(self) -> None:
        assert self.table.free == len(self.rows_of("free"))
        assert self.table.done == len(self.rows_of("ended"))
        assert self.table.finished == (self.owner == ["ended"] * ROWS)
        for node in self.table.nodes:
            assert self.table.held(node) == len(self.rows_of(node))

    def teardown(self) -> None:
        # One more node can always finish what is there, whatever has happened.
        for node in self.table.nodes:
            self.table.lose(node)
        self.table.join("last")
        while (found := self.table.grant("last")) is not None:
            self.table.ended("last", *found)
        assert self.table.finished


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_leases_get_smaller_and_every_node_gets_some() -> None:
    table = LeaseTable(10_000, nodes=4)
    for name in ("a", "b"):
        table.join(name)
    sizes: list[int] = []
    while (found := table.grant("ab"[len(sizes) % 2])) is not None:
        sizes.append(found[1] - found[0])
    assert sizes[0] == 10_000 // 8
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-2] == 16
    assert len(sizes) < 60


def test_idle_nodes_share_what_comes_back() -> None:
    table = LeaseTable(9)
    for name in ("a", "b", "c"):
        table.join(name)
    assert [table.grant(name, idle=3 - at) for at, name in enumerate("abc")] == [(0, 3), (3, 6), (6, 9)]


def test_who_holds_most_is_asked_once_and_then_not_before_a_new_lease() -> None:
    table = LeaseTable(40, least=20)
    for name in ("a", "b", "idle"):
        table.join(name)
    assert table.grant("a") == (0, 20)
    assert table.grant("b", idle=2) == (20, 30)
    assert table.grant("a") == (30, 40)
    assert table.steal("idle") == "a"
    assert table.steal("idle") == "b"
    assert table.steal("idle") is None
    table.shrunk("a", [])
    table.shrunk("b", [(25, 30)])
    assert table.steal("idle") == "b"
    table.shrunk("b", [])
    assert table.steal("idle") is None
    assert table.grant("a") == (25, 30)
    assert table.steal("idle") == "a"
    assert table.steal("a") is None  # `b` is dry, the idle one has nothing


def test_a_name_joins_once_until_it_is_lost() -> None:
    table = LeaseTable(4)
    table.join("a")
    with pytest.raises(ValueError, match="a has joined already"):
        table.join("a")
    assert table.grant("a") == (0, 4)
    assert table.lose("a") == 4
    assert table.lose("a") == 0
    with pytest.raises(ValueError, match="does not hold"):
        table.ended("a", 0, 4)
    table.join("a")
    assert table.grant("a") == (0, 4)
