"""The samples on their way: a bounded queue from the tokenizer to the requests; what must be sent again goes first."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import anyio

from hs_client.prepare import Prepared

__all__ = ["Item", "WorkQueue"]


@dataclass(slots=True, eq=False)
class Item:
    """A sample of this run. `row` is its ordinal in the run, part of its request ids.

    `attempt` numbers its next request, `tries` counts attempts that failed for a reason of their own, `lost` those
    whose answer never came. `too_large`: it was, for the limit of a moment; `put_off`: therefore it waits for the end
    of the run. `settled`: done, failed for good, or left to the next run.
    """

    sample: Prepared
    row: int
    attempt: int = 0
    tries: int = 0
    lost: int = 0
    too_large: bool = False
    put_off: bool = False
    settled: bool = False


@dataclass(slots=True)
class WorkQueue:
    """First in, first out; what is sent again goes first, once its pause is over; what was put off goes last, when
    nothing else is unsettled and the input has ended or pauses; of that no more than `put_off_tokens` is kept. Ends
    when the input has ended and every item is settled. Of samples that were answered as many are kept as have
    `answered_tokens` together."""

    capacity: int = 256
    put_off_tokens: int = 16 << 20
    answered_tokens: int = 16 << 20
    unsettled: int = 0
    _ready: deque[Item] = field(default_factory=deque)
    _paused: list[tuple[float, int, Item]] = field(default_factory=list)
    _put_off: deque[Item] = field(default_factory=deque)
    _put_off_tokens: int = 0
    _answered: deque[Item] = field(default_factory=deque)
    _answered_tokens: int = 0
    _serial: int = 0
    _input_ended: bool = False
    _input_pauses: bool = False
    _closed: bool = False
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    @property
    def has_room(self) -> bool:
        """It is not full, or nothing of it is handed out any more."""
        return len(self._ready) < self.capacity or self._closed

    async def changed(self) -> None:
        """Return when something has been added or taken out."""
        await self._changed.wait()

    async def put(self, items: Iterable[Item]) -> None:
        """Add items; waits while the queue is full."""
        for item in items:
            while not self.has_room:
                await self._changed.wait()
            self.unsettled += 1
            self._ready.append(item)
            self._change()

    async def put_answered(self, item: Item) -> None:
        """Add one that the server has answered; waits only while very many do. Handed out when no other is ready."""
        while self._answered and self._answered_tokens + item.sample.n > self.answered_tokens and not self._closed:
            await self._changed.wait()
        self.unsettled += 1
        self._answered.append(item)
        self._answered_tokens += item.sample.n
        self._change()

    def again(self, item: Item, *, pause_s: float = 0.0) -> None:
        """The item must be sent once more, not before `pause_s` have passed."""
        if pause_s > 0:
            self._serial += 1
            heapq.heappush(self._paused, (anyio.current_time() + pause_s, self._serial, item))
        else:
            self._ready.appendleft(item)
        self._change()

    def put_off(self, item: Item) -> bool:
        """Come back to the item when everything else is settled; False where too many wait like that already."""
        if self._put_off_tokens + item.sample.n > self.put_off_tokens:
            return False
        self._put_off_tokens += item.sample.n
        item.put_off = True
        self._put_off.append(item)
        self._change()
        return True

    def settle(self, item: Item) -> None:
        """Nothing more is to be done for this item."""
        if not item.settled:
            item.settled = True
            self.unsettled -= 1
            self._change()

    def unsent(self) -> list[int]:
        """Row numbers of the items that wait to be handed out for the first time."""
        return [item.sample.number for item in self._ready if not item.attempt and not item.settled]

    def withdraw(self, numbers: Collection[int]) -> None:
        """Forget the items of these rows that wait to be handed out for the first time."""
        kept: deque[Item] = deque()
        for item in self._ready:
            if item.sample.number in numbers and not item.attempt and not item.settled:
                self.unsettled -= 1
            else:
                kept.append(item)
        self._ready = kept
        self._change()

    def pause_input(self, *, paused: bool) -> None:
        """Nobody knows when the next `put` will follow; or it is about to."""
        self._input_pauses = paused
        self._change()

    def end_input(self) -> None:
        """No `put` will follow."""
        self._input_ended = True
        self._change()

    def close(self) -> None:
        """Hand out nothing more."""
        self._closed = True
        self._change()

    @property
    def closed(self) -> bool:
        """`close` was called."""
        return self._closed

    @property
    def has_ready(self) -> bool:
        """An item can be handed out at once."""
        return bool(self._ready or self._answered)

    @property
    def answered(self) -> int:
        """Answered items that wait to be handed out."""
        return len(self._answered)

    @property
    def input_rests(self) -> bool:
        """Every item of the input was put, as far as is known now."""
        return self._input_ended or self._input_pauses

    @property
    def finished(self) -> bool:
        """The input has ended and all of it is settled."""
        return self._input_ended and not self.unsettled

    async def get(self) -> Item | None:
        """The next item; None at the end."""
        while not (self._closed or self.finished):
            item = self._next()
            if item is not None:
                return item
            changed = self._changed
            with anyio.move_on_after(None if not self._paused else self._paused[0][0] - anyio.current_time()):
                await changed.wait()
        return None

    def _next(self) -> Item | None:
        while self._paused and self._paused[0][0] <= anyio.current_time():
            self._ready.appendleft(heapq.heappop(self._paused)[2])
        while self._ready:
            item = self._ready.popleft()
            self._change()
            if not item.settled:
                return item
        if self._answered:
            item = self._answered.popleft()
            self._answered_tokens -= item.sample.n
            self._change()
            return item
        if self.input_rests and self._put_off and len(self._put_off) >= self.unsettled:
            item = self._put_off.popleft()
            self._put_off_tokens -= item.sample.n
            return item
        return None

    async def wait_finished(self) -> None:
        """Return when everything is settled."""
        while not self.finished:
            await self._changed.wait()
