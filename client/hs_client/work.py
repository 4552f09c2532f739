"""The samples on their way: a bounded queue from the tokenizer to the workers; what must be sent again goes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio

from hs_client.prepare import Prepared

__all__ = ["Item", "WorkQueue"]


@dataclass(slots=True, eq=False)
class Item:
    """A sample of this run. `row` is its ordinal in the run, part of its request ids.

    `attempt` numbers its next request, `tries` counts attempts that failed for a reason of their own, `lost` those
    whose answer never came. `settled`: done, failed for good, or left to the next run.
    """

    sample: Prepared
    row: int
    attempt: int = 0
    tries: int = 0
    lost: int = 0
    settled: bool = False


@dataclass(slots=True)
class WorkQueue:
    """First in, first out; what is sent again goes first. Ends when the input has ended and every item is settled."""

    capacity: int = 256
    unsettled: int = 0
    _ready: deque[Item] = field(default_factory=deque)
    _input_ended: bool = False
    _closed: bool = False
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def put(self, items: Iterable[Item]) -> None:
        """Add items; waits while the queue is full."""
        for item in items:
            while len(self._ready) >= self.capacity and not self._closed:
                await self._changed.wait()
            self.unsettled += 1
            self._ready.append(item)
            self._change()

    def again(self, item: Item) -> None:
        """The item must be sent once more."""
        self._ready.appendleft(item)
        self._change()

    def settle(self, item: Item) -> None:
        """Nothing more is to be done for this item."""
        if not item.settled:
            item.settled = True
            self.unsettled -= 1
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
    def finished(self) -> bool:
        """The input has ended and all of it is settled."""
        return self._input_ended and not self.unsettled

    async def get(self) -> Item | None:
        """The next item; None at the end."""
        while True:
            if self._closed or self.finished:
                return None
            while self._ready:
                item = self._ready.popleft()
                self._change()
                if not item.settled:
                    return item
            await self._changed.wait()

    async def wait_finished(self) -> None:
        """Return when everything is settled."""
        while not self.finished:
            await self._changed.wait()
