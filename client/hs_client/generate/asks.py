"""Samples that wait for a worker to have them answered: first in, first out, no more than a number of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator

import anyio

from hs_client.prepare import Ask

__all__ = ["AskQueue"]


class AskQueue:
    """Holds up to `capacity` samples; `get` waits for one. Ends when `end` was called and none is left."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._asks: deque[Ask] = deque()
        self._getting = 0
        self._ended = False
        self._changed = anyio.Event()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def __iter__(self) -> Iterator[Ask]:
        return iter(self._asks)

    @property
    def starving(self) -> bool:
        """Somebody waits for a sample."""
        return self._getting > 0 and not self._asks

    @property
    def has_room(self) -> bool:
        """It is not full."""
        return len(self._asks) < self._capacity

    async def changed(self) -> None:
        """Return when something has been added or taken out."""
        await self._changed.wait()

    def put(self, ask: Ask) -> None:
        """Add one; there must be room."""
        self._asks.append(ask)
        self._change()

    async def get(self) -> Ask | None:
        """The next one; None at the end."""
        self._getting += 1
        try:
            while not self._asks:
                if self._ended:
                    return None
                await self._changed.wait()
        finally:
            self._getting -= 1
        ask = self._asks.popleft()
        self._change()
        return ask

    def withdraw(self, numbers: Collection[int]) -> None:
        """Forget the samples of these rows."""
        self._asks = deque(ask for ask in self._asks if ask.number not in numbers)
        self._change()

    def end(self) -> None:
        """No `put` will follow."""
        self._ended = True
        self._change()
