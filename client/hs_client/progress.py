"""What the user sees while a run lasts: a bar on a terminal, plain lines elsewhere, and the summary at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import anyio

from hs_client.tally import SHOWN_PROBLEMS, Tally, show_bytes, show_seconds

__all__ = ["Progress", "summary_lines"]

_BAR_S = 0.5
_BAR_COLUMNS = 100


class Progress:
    """Shows a tally as it grows, on standard error.

    Args:
        tally: read only.
        interval_s: between plain lines.
        state: gives (requests in flight, records that wait to be stored, what is waited for).
        stream: where to write; a bar is drawn when it is a terminal.
    """

    def __init__(
        self,
        tally: Tally,
        *,
        interval_s: float,
        state: Callable[[], tuple[int, int, str]],
        stream: TextIO | None = None,
    ) -> None:
        self._tally = tally
        self._interval_s = interval_s
        self._state = state
        self._stream = stream if stream is not None else sys.stderr
        self._started_s = time.monotonic()
        self._bar: Any = None

    def follow(self, state: Callable[[], tuple[int, int, str]]) -> None:
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
                smoothing=0.1,
            )

    def say(self, text: str) -> None:
        """A line that is not lost under the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    async def serve(self) -> None:
        """Refresh for ever."""
        while True:
            await anyio.sleep(_BAR_S if self._bar is not None else self._interval_s)
            self._show()

    def _show(self) -> None:
        t = self._tally
        finished = t.done + t.failed + t.rejected
        flying, to_store, waiting = self._state()
        moving = f"{flying} in flight" + f", {to_store} to be stored" * bool(to_store)
        if self._bar is not None:
            self._bar.n = finished
            self._bar.set_postfix_str(moving + (f", waiting for {waiting}" if waiting else ""))
            return
        spent_s = time.monotonic() - self._started_s
        bad = f", {t.failed} failed" * bool(t.failed) + f", {t.rejected} rejected" * bool(t.rejected)
        wait = f"; waiting for {waiting}" if waiting else ""
        self.say(
            f"{finished}/{t.total} samples{bad}, {moving}, {t.tokens / spent_s:,.0f} tokens/s,"
            f" {show_bytes(t.raw_bytes)} raw{wait}"
        )

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._show()
            self._bar.close()
            self._bar = None


def summary_lines(tally: Tally, *, spent_s: float, pending: int) -> list[str]:
    """The closing lines: what became of every sample, bytes and time."""
    t = tally
    counts = [
        f"{t.done} done" + (f" ({t.adopted} adopted)" if t.adopted else ""),
        f"{t.failed} failed",
        f"{t.rejected} rejected",
        f"{t.earlier} done earlier",
    ]
    if t.identical:
        counts.append(f"{t.identical} identical rows stored once")
    if pending:
        counts.append(f"{pending} pending")
    lines = [f"samples    {', '.join(counts)}"]
    if t.done:
        ratio = f", {t.raw_bytes / t.stored_bytes:.2f} times smaller" if t.stored_bytes else ""
        lines += [
            f"tokens     {t.tokens:,}, of which {t.trained_tokens:,} to train on",
            f"bytes      {show_bytes(t.raw_bytes)} raw, {show_bytes(t.stored_bytes)} stored{ratio}",
        ]
    rate = f", {t.done / spent_s:.1f} samples/s, {t.tokens / spent_s:,.0f} tokens/s" if t.done and spent_s > 0 else ""
    lines.append(f"time       {show_seconds(spent_s)}, {t.sent} requests{rate}")
    waits = [f"{show_seconds(seconds)} for {what}" for what, seconds in t.waited_s.most_common(4) if seconds >= 0.1]
    if waits:
        lines.append(f"waited     {', '.join(waits)}")
    lines += [f"  {problem}" for problem in t.problems]
    more = t.failed + t.rejected - len(t.problems)
    if more > 0 and len(t.problems) >= SHOWN_PROBLEMS:
        lines.append(f"  … and {more} more, in the ledger")
    return lines
