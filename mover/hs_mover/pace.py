"""A token bucket over source bytes, shared by all worker threads: ``--limit-rate``."""

from __future__ import annotations

import threading
import time

__all__ = ["Pace"]

_BURST_S = 0.25


class Pace:
    """Makes callers wait so that together they take at most `bytes_per_s`; None never waits.

    Debts are allowed: a block larger than the bucket goes through and the next caller waits for it.
    """

    def __init__(self, bytes_per_s: int | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._tokens = 0.0 if bytes_per_s is None else bytes_per_s * _BURST_S
        self._at_s = time.monotonic()
        self._lifted = threading.Event()

    def take(self, count: int) -> float:
        """Wait for the right to read `count` bytes; returns the seconds waited."""
        if self._rate is None or self._lifted.is_set():
            return 0.0
        with self._lock:
            now_s = time.monotonic()
            self._tokens = min(self._rate * _BURST_S, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
            self._tokens -= count
            wait_s = -self._tokens / self._rate
        if wait_s <= 0:
            return 0.0
        self._lifted.wait(wait_s)
        return time.monotonic() - now_s

    def lift(self) -> None:
        """Let everybody go on at once: the mover is stopping and finishes what it has in hand."""
        self._lifted.set()
