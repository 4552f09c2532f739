"""Keeps the timeline of a run in its dataset: every few seconds a line, for `hs-client report`."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import anyio.to_thread

from hs_client.limiter import Limiter
from hs_client.progress import Snapshot
from hs_client.tally import Tally, percentile
from hs_formats.jsonl import AppendLog
from hs_formats.timeline import TimelinePoint, interval_s

__all__ = ["TimelineLog"]

_END_S = 5.0
"""How long the last line may take where the destination does not answer."""


class TimelineLog:
    """Writes points of a run; a destination that does not take them is said once and never stops the run.

    Args:
        path: of the file; its folder is made, but not the folder above.
        tally: read only.
        say: prints a line for the user.
        publish: given `path` after the last line, has it sent to where the dataset lies.
    """

    def __init__(
        self, path: Path, tally: Tally, *, say: Callable[[str], None], publish: Callable[[Path], None] = lambda _: None
    ) -> None:
        self._publish = publish
        self._path = path
        self._tally = tally
        self._say = say
        self._started_s = time.monotonic()
        self._snapshot: Callable[[], Snapshot] = Snapshot
        self._limiter = Limiter(self._started_s)
        self._answered = 0
        self._told = False

    def follow(self, snapshot: Callable[[], Snapshot], limiter: Limiter) -> None:
        """The run begins to send: `snapshot` and `limiter` are asked from now on, and time counts from here."""
        self._snapshot = snapshot
        self._limiter = limiter
        self._started_s = time.monotonic()

    async def serve(self) -> None:
        """Write lines for ever."""
        while True:
            point = self._point()
            # A destination that hangs must not keep a run from ending.
            await anyio.to_thread.run_sync(self._write, point, abandon_on_cancel=True)
            await anyio.sleep(interval_s(point.run_s))

    def end(self, exit_code: int, error: str) -> None:
        """Write the last line; not while `serve` runs."""
        if error:
            self._told = True  # what ails the destination is in the error
        point = self._point(exit_code=exit_code, error=error)
        writer = threading.Thread(target=self._finish, args=(point,), daemon=True)
        writer.start()
        writer.join(_END_S)
        if writer.is_alive():
            self._tell(f"not within {_END_S:.0f} s")

    def _point(self, *, exit_code: int = -1, error: str = "") -> TimelinePoint:
        t, now, at_s = self._tally, self._snapshot(), time.monotonic()
        new, self._answered = t.answered - self._answered, t.answered
        latencies_s = list(itertools.islice(reversed(t.latencies_s), new))
        return TimelinePoint(
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            run_s=round(at_s - self._started_s, 3),
            done=t.done,
            failed=t.failed,
            rejected=t.rejected,
            retried=t.retried,
            sent=t.sent,
            answered=t.answered,
            tokens=t.tokens,
            raw_bytes=t.raw_bytes,
            stored_bytes=t.stored_bytes,
            in_flight=now.in_flight,
            to_store=now.to_store,
            used_bytes=now.used_bytes,
            limit_bytes=now.limit_bytes,
            p50_s=round(percentile(latencies_s, 0.5), 4),
            p95_s=round(percentile(latencies_s, 0.95), 4),
            waited_s={party: round(seconds, 3) for party, seconds in self._limiter.totals_s(at_s).items() if party},
            exit_code=exit_code,
            error=error,
        )

    def _finish(self, point: TimelinePoint) -> None:
        self._write(point)
        try:
            self._publish(self._path)
        except OSError as error:
            self._tell(error.strerror or str(error))

    def _write(self, point: TimelinePoint) -> None:
        try:
            # Only this folder: above it would be made anew where a destination has come unmounted.
            self._path.parent.mkdir(exist_ok=True)
            with AppendLog(self._path) as log:
                log.append([point])
                log.sync()
        except OSError as error:
            self._tell(error.strerror or str(error))

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"warning: the timeline {self._path} cannot be written ({reason}): a report will have a gap")
