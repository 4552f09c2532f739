"""A line for each scratch folder at the bottom of a terminal: how full it is, what comes in, what goes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hs_formats.control import MoverState

if TYPE_CHECKING:
    from hs_mover.lane import Lane

__all__ = ["View", "caption", "wanted"]

_FORMAT = "{desc} {percentage:3.0f}%|{bar:16}| {postfix}"


def wanted(log_format: str) -> bool:
    """Standard error is a terminal, and the lines are for people."""
    return log_format == "text" and sys.stderr.isatty()


def caption(state: MoverState) -> str:
    """What stands behind the bar."""
    drain = f", {state.drain_s:.0f} s to drain" if state.backlog_parts and state.drain_s >= 0 else ""
    text = (
        f"in {state.in_bytes_per_s / 1e6:.0f} MB/s, out {state.out_bytes_per_s / 1e6:.0f} MB/s, "
        f"{state.backlog_parts} parts{drain}, {state.codec}"
    )
    return f"{text}, {state.state.upper()}: {state.reason}" if state.state == "holding" else text


class View:
    """Bars of scratch's fill; `tick` redraws them."""

    def __init__(self, lanes: Sequence[Lane], bars: Sequence[Any]) -> None:
        self._lanes = lanes
        self._bars = bars

    @classmethod
    @contextmanager
    def shown(cls, lanes: Sequence[Lane]) -> Iterator[View]:
        """Bars until the block ends; log lines must go through ``tqdm.write`` meanwhile."""
        from tqdm import tqdm

        bars = [
            tqdm(
                total=1, desc=lane.control.scratch.name, position=number, bar_format=_FORMAT, leave=False,
                dynamic_ncols=True, file=sys.stderr,
            )
            for number, lane in enumerate(lanes)
        ]  # fmt: skip
        try:
            yield cls(lanes, bars)
        finally:
            for bar in reversed(bars):
                bar.close()

    def tick(self) -> None:
        """Draw what the heartbeats last said."""
        for lane, bar in zip(self._lanes, self._bars, strict=True):
            state = lane.state
            if state is None:
                continue
            bar.total = max(1, state.capacity_bytes)
            bar.n = min(state.used_bytes, bar.total)
            bar.set_postfix_str(caption(state), refresh=False)
            bar.refresh()
