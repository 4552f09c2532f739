"""A bound on the host memory between the forward pass and the files."""

from __future__ import annotations

import threading
import time

__all__ = ["ByteBudget"]


class ByteBudget:
    """Counts bytes in flight. A request larger than the whole budget is admitted when nothing else is in flight.

    `waits` and `waited_s` count how often and how long `acquire` had to wait.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.waits = 0
        self.waited_s = 0.0
        self._used = 0
        self._freed = threading.Condition()

    def acquire(self, size_bytes: int, *, timeout_s: float) -> bool:
        """Take `size_bytes`, waiting for releases up to `timeout_s`; False when that was not enough."""
        with self._freed:
            if self._fits(size_bytes):
                self._used += size_bytes
                return True
            started = time.monotonic()
            fits = self._freed.wait_for(lambda: self._fits(size_bytes), timeout_s)
            self.waits += 1
            self.waited_s += time.monotonic() - started
            if fits:
                self._used += size_bytes
            return fits

    def release(self, size_bytes: int) -> None:
        """Give back what `acquire` took."""
        with self._freed:
            self._used -= size_bytes
            self._freed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self._used == 0 or self._used + size_bytes <= self.limit_bytes
