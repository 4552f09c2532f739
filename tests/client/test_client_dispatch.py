"""Which server gets a sample, and what becomes of those that fit nowhere now: the dispatcher with servers of straw."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import numpy as np
import pytest

from hs_client import dispatch
from hs_client.admission import Decision
from hs_client.attempt import Verdict
from hs_client.backend import Backend
from hs_client.dispatch import Dispatcher
from hs_client.limiter import Limiter
from hs_client.prepare import Prepared
from hs_client.storage import Storage
from hs_client.tally import Tally
from hs_client.work import Item, WorkQueue

pytestmark = pytest.mark.anyio

GRANT = Decision("grant")
WAIT = Decision("wait", reason="room in scratch")
LATER = Decision("later", reason="its record needs 9 bytes of scratch, more than the limit of 8")
NEVER = Decision("never", reason="its record needs 9 bytes of scratch, more than the limit of 7")


class StrawStorage(Storage):
    """Says what it was told to say, the last thing for ever."""

    def __init__(self, *said: Decision) -> None:
        self.said = deque(said)
        self.asked = 0
        self.stopped = 0
        self.keeper = self  # type: ignore[assignment]
        self.correlator = SimpleNamespace(look_s=0.0, tick=self._tick, outstanding_bytes=lambda: 1)  # type: ignore[assignment]

    @property
    def mover(self) -> None:
        return None

    async def _tick(self) -> bool:
        return False

    async def take(self, need_bytes: int) -> Decision:
        self.asked += 1
        return self.said.popleft() if len(self.said) > 1 else self.said[0]

    def stop_waiting(self) -> None:
        self.stopped += 1

    def granted(self, at_s: float) -> None:
        pass


class StrawBackend(Backend):
    def __init__(self, storage: Storage, *, tokens: int = 0, ready: bool = True, longest: int = 100) -> None:
        self.storage = storage
        self.tokens = tokens
        self.dropped = False
        self.is_ready = ready
        self.longest = longest
        self.gate = SimpleNamespace(paused=not ready, reason="HTTP 503")  # type: ignore[assignment]
        self.cost = SimpleNamespace(record=lambda n: n)  # type: ignore[assignment]

    @property
    def ready(self) -> bool:
        return self.is_ready and not self.dropped

    @property
    def longest_prompt(self) -> int:
        return self.longest


@dataclass
class Stage:
    backends: list[Any]
    queue: WorkQueue = field(default_factory=WorkQueue)
    given_up: dict[int, Verdict] = field(default_factory=dict)
    announced: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tally = Tally()
        self.dispatcher = Dispatcher(
            self.backends,
            self.queue,
            limiter=Limiter(0.0),
            tally=self.tally,
            give_up=self._give_up,
            announce=self.announced.append,
            admission=True,
        )

    async def _give_up(self, item: Item, verdict: Verdict) -> None:
        self.given_up[item.row] = verdict
        self.queue.settle(item)

    async def place(self, item: Item) -> Any:
        with anyio.fail_after(10):
            return await self.dispatcher.place(item)


def item(row: int, n: int = 5) -> Item:
    return Item(Prepared(f"s{row}", f"f:{row}", np.zeros(n, dtype=np.int32), [(0, n)], ""), row)


async def test_least_outstanding_tokens_first_and_only_where_it_may_be_sent() -> None:
    busy, idle = StrawBackend(StrawStorage(GRANT), tokens=900), StrawBackend(StrawStorage(GRANT), tokens=30)
    paused = StrawBackend(StrawStorage(GRANT), ready=False)
    narrow = StrawBackend(StrawStorage(GRANT), longest=4)
    stage = Stage([busy, idle, paused, narrow])
    assert await stage.place(item(0)) is idle
    idle.tokens = 901
    assert await stage.place(item(1)) is busy
    assert await stage.place(item(2, 4)) is narrow
    idle.dropped = busy.dropped = True
    async with anyio.create_task_group() as group:

        async def come_back() -> None:
            await anyio.sleep(0.05)
            paused.is_ready = True
            stage.dispatcher.changed()

        group.start_soon(come_back)
        assert await stage.place(item(3)) is paused
    assert stage.announced == ["the server (HTTP 503)"]
    assert await stage.place(item(4, 101)) is None
    assert stage.given_up[4].reason == "101 tokens, and this server takes 100 at most"


async def test_a_full_scratch_sends_the_sample_to_another_one_and_a_grant_ends_every_queue() -> None:
    full, free = StrawStorage(WAIT), StrawStorage(WAIT, WAIT, GRANT)
    stage = Stage([StrawBackend(full), StrawBackend(full, tokens=1), StrawBackend(free, tokens=2)])
    assert await stage.place(item(0)) is stage.backends[2]
    assert (full.asked, free.asked) == (3, 3), "servers of one scratch ask once"
    assert full.stopped > 0
    assert free.stopped > 0
    assert set(stage.announced) == {"room in scratch"}
    assert stage.tally.waited_s["room in scratch"] > 0


async def test_a_limit_that_was_low_for_a_moment_costs_no_row() -> None:
    storage = StrawStorage(LATER, GRANT, LATER, GRANT)
    stage = Stage([StrawBackend(storage)])
    large, small = item(0, 9), item(1)
    await stage.queue.put([large, small])
    stage.queue.end_input()
    assert await stage.queue.get() is large
    assert await stage.place(large) is None
    assert await stage.queue.get() is small
    assert await stage.place(small) is stage.backends[0]
    stage.queue.settle(small)
    assert await stage.queue.get() is large
    assert await stage.place(large) is stage.backends[0]
    assert stage.given_up == {}


async def test_a_limit_that_stays_low_ends_the_wait_once_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_LIMIT_PATIENCE_S", 0.2)
    stage = Stage([StrawBackend(StrawStorage(LATER)), StrawBackend(StrawStorage(NEVER))])
    rows = [item(row, 9) for row in range(30)]
    await stage.queue.put(rows)
    stage.queue.end_input()
    with anyio.fail_after(3):
        while (each := await stage.queue.get()) is not None:
            assert await stage.place(each) is None
    assert sorted(stage.given_up) == list(range(30))
    assert {verdict.kind for verdict in stage.given_up.values()} == {"too large"}
    assert "more than the limit of 8" in stage.given_up[0].reason


async def test_no_more_is_put_off_than_memory_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all rows are too large for the limit of a moment they must not all be kept."""
    monkeypatch.setattr(dispatch, "_LIMIT_PATIENCE_S", 0.2)
    stage = Stage([StrawBackend(StrawStorage(LATER))], queue=WorkQueue(put_off_tokens=20 * 9))
    rows = [item(row, 9) for row in range(60)]
    await stage.queue.put(rows)
    stage.queue.end_input()
    most = 0
    with anyio.fail_after(5):
        while (each := await stage.queue.get()) is not None:
            assert await stage.place(each) is None
            most = max(most, sum(each.put_off and not each.settled for each in rows))
    assert most == 20
    assert sorted(stage.given_up) == list(range(60))


async def test_a_record_that_no_scratch_can_ever_hold_is_named_at_once() -> None:
    stage = Stage([StrawBackend(StrawStorage(NEVER)), StrawBackend(StrawStorage(NEVER))])
    assert await stage.place(item(0, 9)) is None
    assert stage.given_up[0] == Verdict("too large", NEVER.reason)
    waits = Stage([StrawBackend(StrawStorage(NEVER)), StrawBackend(StrawStorage(WAIT, GRANT))])
    assert await waits.place(item(1, 9)) is waits.backends[1]
    assert waits.given_up == {}


async def test_the_end_of_the_run_ends_the_wait() -> None:
    stage = Stage([StrawBackend(StrawStorage(WAIT))])
    async with anyio.create_task_group() as group:

        async def end() -> None:
            await anyio.sleep(0.05)
            stage.queue.close()

        group.start_soon(end)
        assert await stage.place(item(0)) is None
    assert stage.given_up == {}
