"""What the user sees while a run lasts: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

import anyio

from hs_client.limiter import Party
from hs_client.saying import going_on, say
from hs_client.tally import Tally, percentile, show_bytes, show_seconds
from hs_formats.printable import printable

__all__ = ["Progress", "Rates", "Snapshot", "progress_text"]

_BAR_S = 0.5
_BAR_COLUMNS = 120
_RATE_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run as it stands.

    `generating`: requests for answers; `to_capture`: answered samples that wait for their capture. `to_store`: records
    that wait to be stored. `waiting`: what is waited for, in words. `limiting`: which party was
    waited for most of late. Of scratch, all of them together: `used_bytes` of `limit_bytes`, and what comes in and goes
    out in a second.
    """

    in_flight: int = 0
    generating: int = 0
    to_capture: int = 0
    to_store: int = 0
    waiting: str = ""
    limiting: Party = ""
    used_bytes: int = 0
    limit_bytes: int = 0
    in_bytes_per_s: float = 0.0
    out_bytes_per_s: float = 0.0


class Rates:
    """Samples and tokens a second over the last `_RATE_WINDOW_S`, and when it will end at that rate. Pure logic."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()

    def note(self, at_s: float, *, samples: int, tokens: int) -> None:
        """So much is finished by now."""
        self._points.append((at_s, samples, tokens))
        while len(self._points) > 2 and self._points[1][0] <= at_s - _RATE_WINDOW_S:
            self._points.popleft()

    def _rate(self, which: int) -> float:
        if len(self._points) < 2:
            return 0.0
        first, last = self._points[0], self._points[-1]
        spent_s = last[0] - first[0]
        return (last[which] - first[which]) / spent_s if spent_s > 0 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Of late."""
        return self._rate(2)

    def left_s(self, samples: int) -> float | None:
        """Seconds until `samples` more are finished; None where nothing was finished of late."""
        rate = self._rate(1)
        return samples / rate if rate > 0 else None


class Progress:
    """Shows a tally as it grows, on standard error.

    Args:
        tally: read only.
        interval_s: between plain lines.
        stream: where to write; a bar is drawn when it is a terminal.
    """

    def __init__(self, tally: Tally, *, interval_s: float, stream: TextIO | None = None) -> None:
        self._tally = tally
        self._interval_s = interval_s
        self._state: Callable[[], Snapshot] = Snapshot
        self._stream = stream if stream is not None else sys.stderr
        self._rates = Rates()
        self._bar: Any = None

    def follow(self, state: Callable[[], Snapshot]) -> None:
        """Ask `state` from now on."""
        self._state = state

    def start(self, total: int) -> None:
        """Draw the bar if there is a terminal."""
        if self._stream.isatty():
            from tqdm import tqdm

            # Some pseudo-terminals say that they have no size at all.
            sized = os.get_terminal_size(self._stream.fileno()).columns > 0
            self._bar = tqdm(
                total=total,
                unit="sample",
                file=self._stream,
                dynamic_ncols=sized,
                ncols=None if sized else _BAR_COLUMNS,
                nrows=None if sized else 2,
                bar_format="{percentage:3.0f}%|{bar:10}| {desc}",
            )

    def say(self, text: str) -> None:
        """A line that is not lost under the bar."""
        with going_on(self._stream):
            if self._bar is not None:
                self._bar.write(printable(text), file=self._stream)
            else:
                say(text, stream=self._stream)

    def text(self) -> str:
        """The run as it stands, in a line."""
        return progress_text(self._tally, self._state(), self._rates)

    async def serve(self) -> None:
        """Refresh for ever."""
        self._note()
        while True:
            await anyio.sleep(_BAR_S if self._bar is not None else self._interval_s)
            self._note()
            self._show()

    def _note(self) -> None:
        t = self._tally
        self._rates.note(time.monotonic(), samples=t.total - t.left, tokens=t.tokens)

    def _show(self) -> None:
        if self._bar is None:
            self.say(self.text())
            return
        self._bar.total = self._tally.total
        self._bar.n = self._tally.total - self._tally.left
        with going_on(self._stream):
            self._bar.set_description_str(self.text())

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._note()
            self._show()
            with going_on(self._stream):
                self._bar.close()
            self._bar = None


def progress_text(tally: Tally, now: Snapshot, rates: Rates) -> str:
    """One line: counts, rates, scratch, latencies, what limits, time left, what is waited for."""
    t = tally
    words = [f"{t.total - t.left}/{t.total} samples"]  # what matters most first: a narrow terminal cuts the rest off
    words += [f"{count} {name}" for count, name in ((t.failed, "failed"), (t.rejected, "rejected")) if count]
    words.append(f"{rates.tokens_per_s:,.0f} tokens/s")
    left_s = rates.left_s(t.left)
    if t.left and left_s is not None:
        words.append(f"{show_seconds(left_s)} left")
    if now.limiting:
        words.append(f"limited by the {now.limiting}")
    if t.generation or now.generating:
        words.append(f"{now.generating} generating, {t.generation.tokens:,} tokens of answers so far")
    if now.to_capture:
        words.append(f"{now.to_capture} to be captured")
    words.append(f"{now.in_flight} in flight" + f", {now.to_store} to be stored" * bool(now.to_store))
    if now.in_bytes_per_s or now.out_bytes_per_s:
        words.append(f"{show_bytes(now.in_bytes_per_s)}/s in, {show_bytes(now.out_bytes_per_s)}/s out")
    if now.limit_bytes:
        words.append(f"scratch {now.used_bytes / now.limit_bytes:.0%} of {show_bytes(now.limit_bytes)}")
    if t.latencies_s:
        p50_s, p95_s = percentile(t.latencies_s, 0.5), percentile(t.latencies_s, 0.95)
        words.append(f"answers p50 {p50_s:.2f} s, p95 {p95_s:.2f} s")
    return ", ".join(words) + (f"; waiting for {now.waiting}" if now.waiting else "")
