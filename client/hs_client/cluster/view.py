"""What the user sees of many nodes: a line for each and one for all, redrawn on a terminal, now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from hs_client.leases.protocol import State
from hs_client.saying import going_on, say
from hs_client.tally import show_bytes, show_seconds
from hs_formats.printable import printable

__all__ = ["NodeLine", "TotalLine", "View", "node_text", "total_text"]

_REDRAW_S = 0.5
_COLUMNS = 120
_UP_AND_CLEAR = "\x1b[{lines}F\x1b[J"


@dataclass(frozen=True, slots=True)
class NodeLine:
    """A node as it stands. `phase` is what it does while its client does not send; `held`: rows that it holds."""

    name: str
    phase: str = ""
    held: int = 0
    state: State | None = None


@dataclass(frozen=True, slots=True)
class TotalLine:
    """All nodes as they stand. `nodes` of `wanted` send; `left_s`: None where that is not known."""

    ended: int
    total: int
    failed: int
    rejected: int
    tokens_per_s: float
    left_s: float | None
    nodes: int
    wanted: int


def node_text(line: NodeLine) -> str:
    """Its rate, what limits it, scratch, the rows that it holds, what it waits for."""
    state = line.state
    if state is None or line.phase:
        return f"{line.name}: {line.phase or 'starts'}"
    words = [f"{state.tokens_per_s:,.0f} tokens/s", f"{state.done + state.failed + state.rejected} samples"]
    if state.limiting:
        words.append(f"limited by the {state.limiting}")
    if state.limit_bytes:
        words.append(f"scratch {state.used_bytes / state.limit_bytes:.0%} of {show_bytes(state.limit_bytes)}")
    words += [f"{line.held} rows held", f"{state.in_flight} in flight"]
    return f"{line.name}: " + ", ".join(words) + (f"; waiting for {state.waiting}" if state.waiting else "")


def total_text(line: TotalLine) -> str:
    """Counts, rate and time left."""
    words = [f"{line.ended}/{line.total} samples"] if line.total else ["no client has its plan yet"]
    words += [f"{count} {name}" for count, name in ((line.failed, "failed"), (line.rejected, "rejected")) if count]
    words += [f"{line.tokens_per_s:,.0f} tokens/s"] * bool(line.total)
    if line.left_s is not None:
        words.append(f"{show_seconds(line.left_s)} left")
    words.append(f"{line.nodes} of {line.wanted} nodes send")
    return ", ".join(words)


class View:
    """Shows nodes and total, on standard error.

    Args:
        interval_s: between plain lines.
        stream: where to write; a block is redrawn in place when it is a terminal.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, interval_s: float, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._drawn: list[str] = []
        self._live = self._stream.isatty()
        self._every_s = _REDRAW_S if self._live else interval_s
        self._clock = clock
        self._shown_s = clock()

    @property
    def due(self) -> bool:
        """It is time for `show`."""
        return self._clock() - self._shown_s >= self._every_s

    def say(self, text: str) -> None:
        """A line that stays."""
        block = self._drawn
        with going_on(self._stream):
            self._erase()
            say(text, stream=self._stream)
            self._draw(block)

    def show(self, nodes: Sequence[NodeLine], total: TotalLine) -> None:
        """Nodes and total as they stand now."""
        self._shown_s = self._clock()
        lines = [*map(node_text, nodes), total_text(total)]
        with going_on(self._stream):
            if not self._live:
                for line in lines:
                    say(line, stream=self._stream)
                return
            self._erase()
            self._draw([printable(line).replace("\n", " ") for line in lines])

    def close(self) -> None:
        """Leave the block as it stands."""
        self._drawn = []

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(_UP_AND_CLEAR.format(lines=len(self._drawn)))
            self._drawn = []

    def _draw(self, lines: list[str]) -> None:
        if not lines:
            return
        width = self._columns()
        self._stream.write("".join(f"{line[: width - 1]}\n" for line in lines))
        self._stream.flush()
        self._drawn = lines

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS
