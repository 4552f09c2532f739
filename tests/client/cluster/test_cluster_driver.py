"""The driver against a cluster of fakes: who gets which rows, what becomes of lost nodes, how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from fake_fleet import FakeActor, FakeFleet
from hs_client.cluster.driver import Driver
from hs_client.cluster.errors import NodesFailed, NodesRefuse, NodesTogether, NodesWithoutStorage, NoNodes
from hs_client.cluster.fleet import RayNode
from hs_client.cluster.settings import ClusterSettings
from hs_client.cluster.view import View
from hs_client.run_cli import run

ROWS = 300


def settings_of(tmp_path: Path | None = None, **changes: Any) -> ClusterSettings:
    given: dict[str, Any] = {
        "address": "auto",
        "nodes": 2,
        "resource": "hs_node",
        "gpus": 0.0,
        "server": (),
        "mover": (),
        "url": "http://127.0.0.1:800{node}",
        "scratch": Path("/s{node}"),
        "command": run,
        "arguments": ("run", "prompts.jsonl", "--ray"),
        "folder": "/",
        "environment": {},
        "version": "1",
        "progress_interval_s": 0.0,
        "summary_json": None if tmp_path is None else tmp_path / "summary.json",
        "repeat": "hs-client run prompts.jsonl --ray",
    }
    return ClusterSettings(**{**given, **changes})


class Told:
    """A driver, and what it has said."""

    def __init__(self, fleet: FakeFleet, settings: ClusterSettings) -> None:
        self.stream = io.StringIO()
        view = View(interval_s=settings.progress_interval_s, stream=self.stream, clock=lambda: fleet.now_s)
        self.driver = Driver(settings, fleet, view, clock=lambda: fleet.now_s, sleep=self._sleep(fleet))

    @staticmethod
    def _sleep(fleet: FakeFleet) -> Callable[[float], None]:
        def sleep(seconds: float) -> None:
            fleet.now_s += max(seconds, 1.0)

        return sleep

    @property
    def text(self) -> str:
        return self.stream.getvalue()


def every_row_once(fleet: FakeFleet, *, again: int = 0) -> None:
    counts = Counter(row for actor in fleet.all for row in actor.ended)
    assert sorted(counts) == list(range(fleet.rows))
    assert sum(counts.values()) - fleet.rows <= again


def test_two_nodes_share_the_rows(tmp_path: Path) -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS)
    told = Told(fleet, settings_of(tmp_path))
    assert told.driver.run() == 0
    every_row_once(fleet)
    assert all(len(actor.ended) > ROWS // 4 for actor in fleet.all)
    assert [actor.job.scratch for actor in fleet.all] == ["/s0", "/s1"]
    assert [actor.job.port for actor in fleet.all] == [8000, 8001]
    assert f"samples    {ROWS} done, 0 failed, 0 rejected, 0 done earlier" in told.text
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert (facts["exit_code"], facts["samples"]["done"], facts["samples"]["pending"]) == (0, ROWS, 0)
    assert [each["node"] for each in facts["nodes"]] == ["node 0 (a)", "node 1 (b)"]
    assert [each["exit_code"] for each in facts["nodes"]] == [0, 0]


def test_a_slow_node_gives_rows_to_a_fast_one() -> None:
    def slow(actor: FakeActor, nth: int) -> None:
        actor.speed = 1 if actor.node.name == "a" else 20

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=slow)
    assert Told(fleet, settings_of()).driver.run() == 0
    every_row_once(fleet)
    assert len(fleet.all[1].ended) > 5 * len(fleet.all[0].ended)


def test_a_lost_actor_is_replaced_and_its_rows_are_not_lost() -> None:
    def lossy(actor: FakeActor, nth: int) -> None:
        actor.speed = 2
        if actor.node.name == "b" and nth == 0:
            actor.fails_after = 10

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=lossy)
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    # The rows of its last step were not heard of: they are brought to an end again, by whoever gets them.
    every_row_once(fleet, again=2)
    assert len([actor for actor in fleet.all if actor.node.name == "b"]) == 2
    assert "warning: node 1 (b) is asked again soon" in told.text
    assert "its actor is lost (the end)" in told.text


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_client_that_hangs_is_named_and_its_rows_wait_until_it_is_killed(*, comes_back: bool) -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS)

    def hang(step: int) -> None:
        other = fleet.all[1]
        if step == 10:
            other.hangs = True
        elif step == 200:
            assert told.text.count("warning: node 1 (b) has said nothing for ") == 1
            assert "node 1 (b): says nothing" in told.text
            other.hangs, other.fails_after = False, None if comes_back else len(other.ended) + 1

    fleet.on_wait = hang
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    every_row_once(fleet, again=0 if comes_back else 1)
    assert ("its actor is lost" in told.text) is not comes_back
    assert "node 0 (a) has said nothing" not in told.text


def test_what_a_lost_actor_has_started_is_stopped_at_the_end() -> None:
    def lossy(actor: FakeActor, nth: int) -> None:
        actor.speed = 20  # the rows have ended before anybody is asked again
        if actor.node.name == "b":
            actor.fails_after = 1

    fleet = FakeFleet(["a", "b"], rows=40, make=lossy)
    assert Told(fleet, settings_of()).driver.run() == 0
    tidied = [actor for actor in fleet.all if actor.job.tidy]
    assert [(actor.node.name, actor.job.number) for actor in tidied] == [("b", 1)]


def test_where_nothing_was_to_be_started_nothing_is_tidied() -> None:
    def lossy(actor: FakeActor, nth: int) -> None:
        if actor.node.name == "b":
            actor.fails_after = 4

    fleet = FakeFleet(["a", "b"], rows=40, make=lossy)
    assert Told(fleet, settings_of(server=None, mover=None)).driver.run() == 0
    assert not any(actor.job.tidy for actor in fleet.all)


def test_a_node_that_fails_again_and_again_is_left_out() -> None:
    def failing(actor: FakeActor, nth: int) -> None:
        actor.speed = 1
        if actor.node.name == "b":
            actor.fails_after, actor.code, actor.error = 0, 4, "no server answers"

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=failing)
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    every_row_once(fleet)
    assert len([actor for actor in fleet.all if actor.node.name == "b"]) == 3
    assert "warning: node 1 (b) is left out: no server answers" in told.text


def test_a_spare_node_takes_the_place_of_a_failing_one() -> None:
    def failing(actor: FakeActor, nth: int) -> None:
        actor.speed = 1
        if actor.node.name == "b":
            actor.fails_after, actor.code = 0, 3

    fleet = FakeFleet(["a", "b", "c"], rows=ROWS, make=failing)
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    assert [actor.node.name for actor in fleet.all] == ["a", "b", "c"]
    assert fleet.all[2].job.number == 1


@pytest.mark.parametrize(
    ("codes", "error"),
    [
        ((4, 4), NodesFailed),
        ((None, None), NodesFailed),
        ((3, 3), NodesRefuse),
        ((2, 3), NodesRefuse),
        ((5, 5), NodesWithoutStorage),
        ((5, 3), NodesFailed),
    ],
)
def test_no_node_is_left(codes: tuple[int | None, int | None], error: type[Exception]) -> None:
    def failing(actor: FakeActor, nth: int) -> None:
        actor.fails_after, actor.code = 0, codes[0 if actor.node.name == "a" else 1]

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=failing)
    told = Told(fleet, settings_of())
    with pytest.raises(error) as caught:
        told.driver.run()
    assert re.search(r"\(a, b: .*the end\)*; all samples are pending", str(caught.value))
    assert "to go on   hs-client run prompts.jsonl --ray" in told.text


def test_nodes_that_vanish_are_waited_for() -> None:
    def dying(actor: FakeActor, nth: int) -> None:
        actor.speed = 1
        if nth == 0:
            actor.fails_after = 10

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=dying)
    nodes = list(fleet.living)
    gone_s: list[float] = []

    def outage(step: int) -> None:
        fleet.living = [] if step >= 8 else nodes
        gone_s.append(fleet.now_s)

    fleet.on_wait = outage
    told = Told(fleet, settings_of())
    with pytest.raises(NodesFailed, match="282 samples are pending"):
        told.driver.run()
    assert fleet.now_s - gone_s[-1] >= 58  # it looks every two seconds


def test_other_prompts_are_refused_by_name() -> None:
    def other(actor: FakeActor, nth: int) -> None:
        actor.speed = 1
        if actor.node.name == "b":
            actor.inputs_hash = "other"

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=other)
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    every_row_once(fleet)
    assert "warning: node 1 (b) is left out: node 1 (b) has other prompts files than node 0 (a)" in told.text
    assert fleet.all[1].interrupts == 2
    assert fleet.all[1].ended == []
    assert len(fleet.all) == 2


def test_fewer_nodes_than_asked_for_are_named_and_used_and_more_may_come() -> None:
    fleet = FakeFleet(["a"], rows=ROWS)
    fleet.on_wait = lambda step: fleet.living.append(RayNode("b", "b")) if step == 5 else None
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    assert "warning: 1 of 2 nodes have 1 hs_node: a; goes on with these, and with others as they come" in told.text
    assert [actor.node.name for actor in fleet.all] == ["a", "b"]
    every_row_once(fleet)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"scratch": Path("/s")}, "--scratch"),
        ({"url": "http://127.0.0.1:8000"}, "--server"),
        ({"url": "http://127.0.0.1:8000", "scratch": Path("/s")}, "--server and --scratch"),
        ({"scratch": Path("/s"), "server": None}, "--scratch"),
        ({}, ""),
        ({"url": "http://127.0.0.1:8000", "server": None}, ""),
        ({"scratch": Path("/s"), "server": None, "mover": None}, ""),
    ],
)
def test_nodes_on_one_machine_are_told_apart(changes: dict[str, Any], options: str) -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS)
    fleet.living = [RayNode(node.id, "vm", "10.0.0.1") for node in fleet.living]
    driver = Told(fleet, settings_of(**changes)).driver
    if not options:
        assert driver.run() == 0
        return
    with pytest.raises(NodesTogether, match=rf"two of the nodes .*\(vm, 10\.0\.0\.1\): write .* into {options}, so"):
        driver.run()
    assert fleet.all == []


def test_a_late_node_on_a_machine_that_is_taken_is_left_out() -> None:
    fleet = FakeFleet(["a"], rows=ROWS, make=lambda actor, nth: setattr(actor, "speed", 2))
    fleet.living = [RayNode("a", "vm", "10.0.0.1")]
    fleet.on_wait = lambda step: fleet.living.append(RayNode("b", "vm", "10.0.0.1")) if step == 5 else None
    told = Told(fleet, settings_of(scratch=Path("/s")))
    assert told.driver.run() == 0
    assert told.text.count("warning: vm is left out: two of the nodes are on one machine") == 1
    assert len(fleet.all) == 1


def test_nodes_on_machines_of_their_own_need_no_placeholder() -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS)
    fleet.living = [RayNode(node.id, node.name, f"10.0.0.{at}") for at, node in enumerate(fleet.living)]
    told = Told(fleet, settings_of(url="http://127.0.0.1:8000", scratch=Path("/s")))
    assert told.driver.run() == 0


def test_without_a_number_all_nodes_take_part() -> None:
    fleet = FakeFleet(["c", "a", "b"], rows=ROWS)
    assert Told(fleet, settings_of(nodes=None)).driver.run() == 0
    assert sorted(actor.node.name for actor in fleet.all) == ["a", "b", "c"]


@pytest.mark.parametrize("nodes", [2, None])
def test_no_node_has_what_is_needed(nodes: int | None) -> None:
    fleet = FakeFleet([], rows=ROWS)
    told = Told(fleet, settings_of(nodes=nodes))
    with pytest.raises(NoNodes, match=r"no node of the Ray cluster has 1 hs_node; there are head \(4 CPU\)"):
        told.driver.run()
    assert fleet.now_s >= 60
    assert told.text.count("warning: no node has 1 hs_node now: waits for one, a minute at most") == 1


def test_nodes_that_are_left_out_still_have_what_is_needed() -> None:
    def refused(actor: FakeActor, nth: int) -> None:
        actor.fails_after, actor.code = 0, 3

    told = Told(FakeFleet(["a", "b"], rows=ROWS, make=refused), settings_of())
    with pytest.raises(NodesRefuse):
        told.driver.run()
    assert " nodes have 1 hs_node" not in told.text
    assert "no node has" not in told.text


def test_a_node_that_fails_with_the_same_words_has_one_line_at_the_end() -> None:
    def failing(actor: FakeActor, nth: int) -> None:
        actor.fails_after, actor.code = 0, 4

    told = Told(FakeFleet(["a"], rows=ROWS, make=failing), settings_of(nodes=1))
    with pytest.raises(NodesFailed):
        told.driver.run()
    ends = [line for line in told.text.splitlines() if line.startswith("node 0 (a): ") and "the end" in line]
    assert [line.endswith(" (3 times)") for line in ends] == [True]


@pytest.mark.parametrize(("changes", "told"), [({}, []), ({"server": None}, ["server"]), ({"mover": None}, ["mover"])])
def test_it_is_said_what_nobody_starts(changes: dict[str, Any], told: list[str]) -> None:
    driver = Told(FakeFleet(["a", "b"], rows=ROWS), settings_of(**changes))
    assert driver.driver.run() == 0
    lines = [f"without --node-{what}, each node's {what} must be running" for what in told]
    assert [line for line in driver.text.splitlines() if line.startswith("without ")] == lines


def test_a_node_that_others_use_is_named_and_not_waited_for() -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS, make=lambda actor, nth: setattr(actor, "speed", 2))
    fleet.pending = {"b"}
    told = Told(fleet, settings_of())
    assert told.driver.run() == 0
    assert "node 1 (b) waits for 1 hs_node, which others use" in told.text
    assert fleet.all[1].ended == []


def test_ctrl_c_drains_and_the_second_leaves_at_once() -> None:
    fleet = FakeFleet(["a", "b"], rows=ROWS, make=lambda actor, nth: setattr(actor, "speed", 1))
    fleet.on_wait = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 10 else None
    told = Told(fleet, settings_of())
    assert told.driver.run() == 130
    assert [actor.interrupts for actor in fleet.all] == [1, 1]
    assert "pending" in told.text
    assert "interrupted: repeat the command to go on" in told.text
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    fleet = FakeFleet(["a", "b"], rows=ROWS, make=lambda actor, nth: setattr(actor, "speed", 1))

    def twice(step: int) -> None:
        if step in (10, 11):
            fleet.pending = {"a", "b"}  # they do not end by themselves
            os.kill(os.getpid(), signal.SIGINT)

    fleet.on_wait = twice
    told = Told(fleet, settings_of())
    assert told.driver.run() == 130
    assert [actor.interrupts for actor in fleet.all] == [2, 2]
    assert "left at once" in told.text


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 200),
    speeds=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    losses=st.lists(st.tuples(st.integers(1, 40), st.sampled_from([None, 4, 5])), max_size=4),
)
def test_every_row_ends_whatever_is_lost(rows: int, speeds: list[int], losses: list[tuple[int, int | None]]) -> None:
    def lossy(actor: FakeActor, nth: int) -> None:
        index = int(actor.node.name)
        actor.speed = speeds[index]
        if nth == 0 and index < len(losses):
            actor.fails_after, actor.code = losses[index]

    fleet = FakeFleet([str(index) for index in range(len(speeds))], rows=rows, make=lossy)
    told = Told(fleet, settings_of(nodes=len(speeds)))
    assert told.driver.run() == 0
    every_row_once(fleet, again=sum(code is None for _, code in losses) * max(speeds))
