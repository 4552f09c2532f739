"""Ratios of repeated measurements, with an interval that says how far they can be trusted. Pure functions."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "paired_ratio", "ratio_of_medians"]

_RESAMPLES = 4000
_SEED = 20_240_607
_TAIL = 0.025


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio and its 95 % bootstrap interval; `pairing` says what was resampled, `samples` how many there were."""

    value: float
    low: float
    high: float
    pairing: str
    samples: int


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Median of the ratios of neighbours in time; the pairs are resampled.

    Raises:
        ValueError: there is no pair, or not as many of one as of the other.
    """
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    if not ratios:
        raise ValueError("no pair was measured")
    draw = random.Random(_SEED)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)]
    return _with_interval(statistics.median(ratios), medians, pairing="paired blocks of one server", count=len(ratios))


def ratio_of_medians(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Ratio of the medians of two independent groups; each is resampled by itself.

    The interval covers the spread inside the groups, not the difference between two starts of one server.

    Raises:
        ValueError: a group is empty.
    """
    if not numerators or not denominators:
        raise ValueError("nothing was measured")
    draw = random.Random(_SEED)
    ratios = [
        statistics.median(draw.choices(numerators, k=len(numerators)))
        / statistics.median(draw.choices(denominators, k=len(denominators)))
        for _ in range(_RESAMPLES)
    ]
    value = statistics.median(numerators) / statistics.median(denominators)
    return _with_interval(value, ratios, pairing="separate servers", count=min(len(numerators), len(denominators)))


def _with_interval(value: float, resampled: list[float], *, pairing: str, count: int) -> Ratio:
    resampled.sort()
    cut = int(len(resampled) * _TAIL)
    return Ratio(value, resampled[cut], resampled[-1 - cut], pairing, count)
