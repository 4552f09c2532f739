"""Charts as SVG text, drawn by hand: no library, no script. Colours come from the page's style, by class.

Every chart has a title and a sentence that says in words what it shows, for those who cannot see it. Marks carry their
numbers as tooltips.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hs_client.report.scales import Axis

__all__ = ["Bar", "Curve", "Whisker", "bars", "columns", "curves", "shares", "whiskers"]

_WIDTH = 570
"""Of charts that stand two in a row."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 16, 10, 42

_WIDE = 760
"""Of charts that stand alone."""

_BAR_HEIGHT, _BAR_LEFT, _BAR_RIGHT = 24, 300, 90
_NAMES = 130
"""Room for the names of slots."""

_CHARACTER = 6.6
"""Width of a character of the labels; close enough to cut those that would not fit."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A line. `tone` is the class that colours it; a point without a value interrupts it.

    `spans` are (start, stop, value): the value holds from start to stop, as rates do. `filled` down to the axis.
    """

    label: str
    tone: str
    spans: Sequence[tuple[float, float, float | None]]
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar with its name before and its text behind; `hint` is a tooltip."""

    label: str
    value: float
    text: str
    tone: str = "s1"
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Whisker:
    """A range with its middle. `extra`: a value beyond, drawn as a ring; None where there is none."""

    label: str
    low: float
    middle: float
    high: float
    extra: float | None
    hint: str


class _Plot:
    """The area between the axes of a chart of a given height."""

    def __init__(self, x: Axis, y: Axis, *, height: int) -> None:
        self._x, self._y = x, y
        self._height = height
        self.bottom = height - _BOTTOM

    def x(self, value: float) -> float:
        """Horizontal place."""
        return round(_LEFT + self._x.at(value) * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        """Vertical place."""
        return round(self.bottom - self._y.at(value) * (self.bottom - _TOP), 1)

    def axes(self) -> Iterable[str]:
        """Grid, ticks and labels."""
        for value, text in self._y.ticks:
            at = self.y(value)
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
            yield f'<text class="tick" x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{escape(text)}</text>'
        for value, text in self._x.ticks:
            at = self.x(value)
            anchor = "end" if at > _WIDTH - _RIGHT - 20 else "middle"
            yield f'<line class="axis" x1="{at}" x2="{at}" y1="{self.bottom}" y2="{self.bottom + 4}"/>'
            yield f'<text class="tick" x="{at}" y="{self.bottom + 17}" text-anchor="{anchor}">{escape(text)}</text>'
        yield f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{self.bottom}" y2="{self.bottom}"/>'
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        yield (
            f'<text class="label" x="{middle}" y="{self._height - 6}" text-anchor="middle">'
            f"{escape(self._x.label)}</text>"
        )
        up = (_TOP + self.bottom) / 2
        yield (
            f'<text class="label" transform="rotate(-90)" x="{-up}" y="13" text-anchor="middle">'
            f"{escape(self._y.label)}</text>"
        )


def _svg(title: str, words: str, width: int, height: int, content: Iterable[str]) -> str:
    inner = "\n".join(content)
    label = escape(f"{title}. {words}")
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width: {width}px" role="img" aria-label="{label}">'
        f"<title>{escape(title)}</title>\n{inner}\n</svg>"
    )


def curves(title: str, words: str, lines: Sequence[Curve], x: Axis, y: Axis, *, height: int = 190) -> str:
    """Lines over time.

    Args:
        title: of the chart.
        words: what it shows, in words.
        lines: the last one lies on top.
        x: of the spans' starts and stops.
        y: of their values.
        height: in the units of the drawing, which is 570 wide.
    """
    plot = _Plot(x, y, height=height)

    def content() -> Iterable[str]:
        yield from plot.axes()
        for line in lines:
            for run in _runs(line.spans):
                points = [at for start, stop, value in run for at in ((start, value), (stop, value))]
                path = "M" + " L".join(f"{plot.x(at)} {plot.y(value)}" for at, value in points)
                if line.filled:
                    area = f"{path} L{plot.x(points[-1][0])} {plot.bottom} L{plot.x(points[0][0])} {plot.bottom} Z"
                    yield f'<path class="area {line.tone}" d="{area}"/>'
                yield f'<path class="line {line.tone}" d="{path}"/>'

    return _svg(title, words, _WIDTH, height, content())


def _runs(spans: Iterable[tuple[float, float, float | None]]) -> Iterable[list[tuple[float, float, float]]]:
    run: list[tuple[float, float, float]] = []
    for start, stop, value in spans:
        if value is not None:
            run.append((start, stop, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def shares(
    title: str,
    words: str,
    spans: Sequence[tuple[float, float, Sequence[float]]],
    tones: Sequence[str],
    x: Axis,
    y: Axis,
    *,
    height: int = 150,
) -> str:
    """Shares of a whole over time, one on the other: of each span (start, stop) a share, 0 to 1, for each tone."""
    plot = _Plot(x, y, height=height)

    def content() -> Iterable[str]:
        yield from plot.axes()
        for start, stop, parts in spans:
            below = 0.0
            left, right = plot.x(start), plot.x(stop)
            for share, tone in zip(parts, tones, strict=True):
                low, high = plot.y(below), plot.y(below + share)
                if share > 0 and right > left and low > high:
                    size = f'width="{right - left:.1f}" height="{low - high:.1f}"'
                    yield f'<rect class="fill {tone}" x="{left}" y="{high}" {size} shape-rendering="crispEdges"/>'
                below += share

    return _svg(title, words, _WIDTH, height, content())


def columns(
    title: str, words: str, spans: Sequence[tuple[float, float, int, str]], x: Axis, y: Axis, *, height: int = 190
) -> str:
    """A histogram: (start, stop, count, tooltip) each."""
    plot = _Plot(x, y, height=height)

    def content() -> Iterable[str]:
        yield from plot.axes()
        for start, stop, count, hint in spans:
            left, right, top = plot.x(start), plot.x(stop), plot.y(count)
            if not count:
                continue
            top = min(top, plot.bottom - 1)  # one in a million is seen too
            size = f'width="{max(1.0, right - left - 1):.1f}" height="{plot.bottom - top:.1f}"'
            yield f'<rect class="fill s1" x="{left}" y="{top}" {size}><title>{escape(hint)}</title></rect>'

    return _svg(title, words, _WIDTH, height, content())


def bars(title: str, words: str, rows: Sequence[Bar], *, high: float | None = None) -> str:
    """Horizontal bars from 0, the longest for `high`, by default the largest value."""
    high = max([high or 0.0, *(row.value for row in rows)]) or 1.0
    width = _WIDE - _BAR_LEFT - _BAR_RIGHT

    def content() -> Iterable[str]:
        for number, row in enumerate(rows):
            y = number * _BAR_HEIGHT
            label = _cut(row.label, _BAR_LEFT - 12)
            length = max(1.0, row.value / high * width) if row.value > 0 else 0.0  # one in a million is seen too
            yield f"<g><title>{escape(row.hint or f'{row.label}: {row.text}')}</title>"
            yield f'<text class="name" x="{_BAR_LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(label)}</text>'
            if length:
                yield f'<rect class="fill {row.tone}" x="{_BAR_LEFT}" y="{y + 4}" width="{length:.1f}" height="16"/>'
            yield f'<text class="value" x="{_BAR_LEFT + length + 6:.1f}" y="{y + 17}">{escape(row.text)}</text></g>'

    return _svg(title, words, _WIDE, max(1, len(rows)) * _BAR_HEIGHT + 4, content())


def _cut(text: str, width: float) -> str:
    most = int(width / _CHARACTER)
    return text if len(text) <= most else text[: most - 1] + "…"


def whiskers(title: str, words: str, rows: Sequence[Whisker], axis: Axis) -> str:
    """Ranges one below the other on a common horizontal axis."""
    bottom = len(rows) * _BAR_HEIGHT + 6
    left, right = _NAMES, _WIDE - 30

    def x(value: float) -> float:
        return round(left + axis.at(value) * (right - left), 1)

    def content() -> Iterable[str]:
        for value, text in axis.ticks:
            yield f'<line class="grid" x1="{x(value)}" x2="{x(value)}" y1="0" y2="{bottom}"/>'
            yield f'<text class="tick" x="{x(value)}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>'
        yield (
            f'<text class="label" x="{(left + right) / 2}" y="{bottom + 33}" text-anchor="middle">'
            f"{escape(axis.label)}</text>"
        )
        for number, row in enumerate(rows):
            y = number * _BAR_HEIGHT + 15
            yield f"<g><title>{escape(f'{row.label}: {row.hint}')}</title>"
            yield f'<text class="name" x="{left - 10}" y="{y + 4}" text-anchor="end">{escape(row.label)}</text>'
            yield f'<line class="range s1" x1="{x(row.low)}" x2="{x(row.high)}" y1="{y}" y2="{y}"/>'
            yield f'<circle class="fill s1" cx="{x(row.middle)}" cy="{y}" r="5"/>'
            if row.extra is not None:
                yield f'<circle class="ring s2" cx="{x(row.extra)}" cy="{y}" r="4.5"/>'
            yield "</g>"

    return _svg(title, words, _WIDE, bottom + 40, content())
