"""A fixed set of buffers that one thread takes and others give back."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["Pool"]

T = TypeVar("T")


class Pool(Generic[T]):
    """`waits` and `waited_s` count how often and how long `take` had to wait."""

    def __init__(self, items: Iterable[T]) -> None:
        self.waits = 0
        self.waited_s = 0.0
        self._free = list(items)
        self._changed = threading.Condition()

    def take(self, *, timeout_s: float) -> T | None:
        """A free item, the one used last since it is warm; None when none became free within `timeout_s`."""
        with self._changed:
            if not self._free:
                started = time.monotonic()
                self._changed.wait_for(lambda: self._free, timeout_s)
                self.waits += 1
                self.waited_s += time.monotonic() - started
            return self._free.pop() if self._free else None

    def give_back(self, item: T) -> None:
        """Make `item` free again."""
        with self._changed:
            self._free.append(item)
            self._changed.notify()
