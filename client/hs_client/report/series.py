"""From the lines of a timeline, or the times in a manifest, to the rates and shares that are drawn. Pure logic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hs_formats.timeline import TimelinePoint

__all__ = ["PARTIES", "Bin", "Interval", "histogram", "intervals", "stored_rates", "waited_shares"]

PARTIES: tuple[str, ...] = ("server", "scratch", "mover", "tokeniser")
"""Whom a run can wait for, as in its timeline."""

_MOST = 240
"""Intervals of a chart: two pixels each."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a run, seconds [start_s, stop_s) since it began to send.

    Rates are averages, `used_bytes`, `in_flight` and `p95_s` the largest of the lines within, `p50_s` the average of
    theirs, weighted by answers; None where nothing was answered. `waited` are shares of the interval, by PARTIES.
    """

    start_s: float
    stop_s: float
    tokens_per_s: float
    samples_per_s: float
    used_bytes: int
    limit_bytes: int
    in_flight: int
    p50_s: float | None
    p95_s: float | None
    waited: tuple[float, ...]


def intervals(points: Sequence[TimelinePoint], *, most: int = _MOST) -> list[Interval]:
    """What happened between the lines, joined so that there are at most `most` intervals of similar length.

    Lines whose clock does not go forward are left out.
    """
    forward: list[TimelinePoint] = []
    for point in points:
        if not forward or point.run_s > forward[-1].run_s:
            forward.append(point)
    if len(forward) < 2:
        return []
    step_s = (forward[-1].run_s - forward[0].run_s) / most
    found: list[Interval] = []
    first = 0
    for at in range(1, len(forward)):
        # By place on the axis, not by length, or errors would add up to more than `most`.
        due_s = forward[0].run_s + step_s * (math.floor((forward[first].run_s - forward[0].run_s) / step_s + 1e-9) + 1)
        if forward[at].run_s >= due_s - 1e-9 * step_s or at == len(forward) - 1:
            found.append(_joined(forward[first], forward[first + 1 : at + 1]))
            first = at
    return found


def _joined(before: TimelinePoint, after: Sequence[TimelinePoint]) -> Interval:
    last = after[-1]
    spent_s = last.run_s - before.run_s
    answered, weighted_s, seen = 0, 0.0, before.answered
    for point in after:
        new, seen = max(0, point.answered - seen), point.answered
        answered += new
        weighted_s += new * point.p50_s
    return Interval(
        start_s=before.run_s,
        stop_s=last.run_s,
        tokens_per_s=max(0, last.tokens - before.tokens) / spent_s,
        samples_per_s=max(0, last.done - before.done) / spent_s,
        used_bytes=max(point.used_bytes for point in after),
        limit_bytes=last.limit_bytes,
        in_flight=max(point.in_flight for point in after),
        p50_s=weighted_s / answered if answered else None,
        p95_s=max(point.p95_s for point in after) if answered else None,
        waited=waited_shares(before, last),
    )


def waited_shares(before: TimelinePoint, last: TimelinePoint) -> tuple[float, ...]:
    """Shares of the time between two lines in which the next request waited, by PARTIES; 1 in all at most."""
    spent_s = last.run_s - before.run_s
    waited = [max(0.0, last.waited_s.get(party, 0.0) - before.waited_s.get(party, 0.0)) for party in PARTIES]
    scale = max(spent_s, sum(waited))
    return tuple(seconds / scale if scale > 0 else 0.0 for seconds in waited)


def stored_rates(stored: Iterable[tuple[float, int]], *, most: int = 120) -> list[tuple[float, float, float]]:
    """Tokens a second from when records were stored, (seconds, tokens) each, in equal intervals (start, stop, rate)."""
    known = sorted(stored)
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return []
    begin_s, span_s = known[0][0], known[-1][0] - known[0][0]
    count = min(most, len(known))
    tokens = [0] * count
    for at_s, n in known:
        tokens[min(count - 1, int((at_s - begin_s) / span_s * count))] += n
    width_s = span_s / count
    return [(number * width_s, (number + 1) * width_s, each / width_s) for number, each in enumerate(tokens)]


@dataclass(frozen=True, slots=True)
class Bin:
    """`count` values in [low, high); both whole numbers."""

    low: int
    high: int
    count: int


def histogram(values: Sequence[int], *, most: int = 40) -> list[Bin]:
    """Non-negative whole numbers in at most `most` equal bins, from the first that holds any to the last."""
    if not values:
        return []
    low, high = min(values), max(values) + 1
    width = -(-(high - low) // most)
    counts = [0] * -(-(high - low) // width)
    for value in values:
        counts[(value - low) // width] += 1
    return [Bin(low + number * width, low + (number + 1) * width, count) for number, count in enumerate(counts)]
