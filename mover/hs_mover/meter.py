"""Where the time of the worker threads goes, and how long the destination takes to sync."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Load", "Meter", "Totals"]


@dataclass(frozen=True, slots=True)
class Totals:
    """Seconds since the start, summed over threads; `at_s` is on the monotonic clock."""

    at_s: float
    encoding_s: float
    writing_s: float
    pacing_s: float
    syncing_s: float


@dataclass(frozen=True, slots=True)
class Load:
    """Shares of a time window, 0 to 1.

    `encoding`, `writing` and `pacing` are shares of what all worker threads could have done: reading, checking and
    encoding; calls that write to the destination; waits for ``--limit-rate``. The rest is `idle`. `syncing` is the
    share of the window in which something waited for the destination to say that it has written.
    """

    encoding: float
    writing: float
    pacing: float
    syncing: float

    @property
    def idle(self) -> float:
        """Workers had nothing to do."""
        return max(0.0, 1.0 - self.encoding - self.writing - self.pacing)

    @classmethod
    def between(cls, before: Totals, after: Totals, *, threads: int) -> Load:
        """What happened from `before` to `after`, which is later."""
        wall_s = after.at_s - before.at_s
        work_s = wall_s * threads

        def share(one: float, other: float, whole: float) -> float:
            return min(1.0, max(0.0, (other - one) / whole))

        return cls(
            encoding=share(before.encoding_s, after.encoding_s, work_s),
            writing=share(before.writing_s, after.writing_s, work_s),
            pacing=share(before.pacing_s, after.pacing_s, work_s),
            syncing=share(before.syncing_s, after.syncing_s, wall_s),
        )


class Meter:
    """Added to by worker threads, read by the moving threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._encoding_s = 0.0
        self._writing_s = 0.0
        self._pacing_s = 0.0
        self._syncing_s = 0.0
        self._syncing_since_s: float | None = None

    def add(self, *, encoding_s: float = 0.0, writing_s: float = 0.0, pacing_s: float = 0.0) -> None:
        """A worker did so much. Pacing happens inside of encoding and is taken out of it here."""
        with self._lock:
            self._encoding_s += encoding_s - pacing_s
            self._writing_s += writing_s
            self._pacing_s += pacing_s

    @contextmanager
    def syncing(self) -> Iterator[None]:
        """The one thread that syncs is waiting for the destination."""
        began_s = time.monotonic()
        with self._lock:
            self._syncing_since_s = began_s
        try:
            yield
        finally:
            with self._lock:
                self._syncing_since_s = None
                self._syncing_s += time.monotonic() - began_s

    def read(self) -> Totals:
        """The sums so far, a sync that goes on included."""
        with self._lock:
            at_s = time.monotonic()
            going_on_s = 0.0 if self._syncing_since_s is None else at_s - self._syncing_since_s
            return Totals(at_s, self._encoding_s, self._writing_s, self._pacing_s, self._syncing_s + going_on_s)
