"""What all lanes of a mover process share: worker threads, the syncing thread, the rate limit, the time keeping."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from hs_mover.config import MoverConfig
from hs_mover.meter import Meter
from hs_mover.pace import Pace
from hs_mover.syncer import Syncer

__all__ = ["Shared", "share"]


@dataclass(frozen=True, slots=True)
class Shared:
    """Everything in it may be used from any thread."""

    pool: ThreadPoolExecutor
    syncer: Syncer
    pace: Pace
    meter: Meter

    def wait_for_pace(self, count: int) -> None:
        """Wait for the right to read `count` bytes."""
        waited_s = self.pace.take(count)
        if waited_s:
            self.meter.add(pacing_s=waited_s)


@contextmanager
def share(config: MoverConfig) -> Iterator[Shared]:
    """Threads that run until the block ends. By then all lanes must have ended."""
    meter = Meter()
    syncer = Syncer(meter)
    syncer.start()
    try:
        with ThreadPoolExecutor(config.threads, thread_name_prefix="part") as pool:
            yield Shared(pool, syncer, Pace(config.limit_bytes_per_s), meter)
    finally:
        syncer.close()
