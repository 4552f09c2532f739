"""Axes: round ticks, how values are written on them, and where a value lies. Pure logic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

__all__ = ["Axis", "linear_axis", "log_axis", "show_number", "show_short", "show_span", "show_time", "time_axis"]

_NOTHING = 1e-12
_STEPS = (1, 2, 2.5, 5, 10)
_TIME_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a chart.

    Attributes:
        label: what it shows, with the unit.
        low: value at its start.
        high: value at its end, above `low`.
        ticks: value and text of each, ascending, within [low, high].
        log: whether it is logarithmic; then `low` is positive.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Where `value` lies, from 0 at the start to 1 at the end; values beyond an end lie at the end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def show_number(value: float) -> str:
    """With the digits that matter: ``1,234``, ``12.3``, ``0.0012``."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) < 1e-4:
        return f"{value:.1e}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def show_short(value: float) -> str:
    """For ticks: ``0``, ``250``, ``1.5 k``, ``20 M``."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return show_number(value / size) + unit
    return show_number(value)


def show_span(seconds: float) -> str:
    """For ticks of time: ``30 s``, ``5 min``, ``2 h``, ``1.5 d``."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{show_number(seconds / size)} {unit}"
    return f"{show_number(seconds)} s"


def show_time(at: str) -> str:
    """A time of day in ISO 8601 without what nobody reads: ``2026-01-02 03:04:05``; others as they are."""
    try:
        return f"{datetime.fromisoformat(at).astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return at or "not known"


def linear_axis(
    label: str, high: float, *, low: float = 0.0, show: Callable[[float], str] = show_short, whole: bool = False
) -> Axis:
    """From `low` to the first round tick at or above `high`, with three to seven ticks, or fewer `whole` ones."""
    span = high - low if high - low > _NOTHING else 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(times * power for times in _STEPS if span / (times * power) <= 5 + 1e-9)
    if whole:
        step = math.ceil(step)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil((low + span) / step - 1e-9))
    values = [number * step for number in range(first, last + 1)]
    return Axis(label, values[0], values[-1], tuple((value, show(value)) for value in values))


def time_axis(label: str, seconds: float) -> Axis:
    """From 0 to `seconds` exactly, with ticks at round times."""
    seconds = max(seconds, 1.0)
    step: float = next((step for step in _TIME_STEPS_S if seconds / step <= 8), 0)
    if not step:
        step = 86_400 * math.ceil(seconds / 86_400 / 8)
    values = [number * step for number in range(int(seconds / step + 1e-9) + 1)]
    return Axis(label, 0.0, seconds, tuple((value, show_span(value)) for value in values))


def log_axis(label: str, low: float, high: float, *, show: Callable[[float], str] = show_short) -> Axis:
    """Whole powers of ten around [low, high], both positive; fewer ticks where there are many."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    step = -(-(last - first) // 6)
    values = [10.0**power for power in range(first, last + 1, step)]
    ticks = tuple((value, show(value)) for value in values)
    return Axis(label, 10.0**first, 10.0**last, ticks, log=True)
