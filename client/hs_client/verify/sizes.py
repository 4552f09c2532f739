"""Sizes and angles: how large the states of a slot are, and how they lie to the next slot's, is alike over a set.

A sample's value is the median over its tokens, so its own scatter shrinks with their number. One that lies further off
than both scatters explain has states of another kind: of another layer, summed over too few ranks, scaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MIN_SAMPLES", "odd_values"]

Floats = npt.NDArray[np.float32]

MIN_SAMPLES = 12
_MIN_TOKENS = 8
_SIGMAS = 8.0
_TO_SIGMA = 1.4826  # of the median of absolute deviations, and of half the distance of quartiles, to a normal sigma


def odd_values(
    values: Floats, spreads: Floats, counts: Sequence[int], *, floor: float
) -> Iterator[tuple[int, int, float]]:
    """Samples whose value lies far from the set's.

    Args:
        values: [N, F], F values of each sample, each the median over its tokens.
        spreads: [N, F], half the distance between the quartiles of the same tokens.
        counts: tokens of each sample; those with few are not judged.
        floor: deviations up to this much are never odd.

    Yields:
        The sample's index, which of the F, and its deviation from the median of the set. At most one a sample.
    """
    n = np.asarray(counts)
    judged = np.flatnonzero((n >= _MIN_TOKENS) & np.isfinite(values).all(axis=1))
    if len(judged) < MIN_SAMPLES:
        return
    values, spreads, n = values[judged], spreads[judged], n[judged]
    off = values - np.median(values, axis=0)
    within = _TO_SIGMA * np.median(spreads, axis=0) * 1.2533 / np.sqrt(n)[:, None]  # of a median of n
    between = _TO_SIGMA * np.median(np.abs(off), axis=0)
    limit = np.maximum(floor, _SIGMAS * np.sqrt(within**2 + between**2))
    for at in np.flatnonzero((np.abs(off) > limit).any(axis=1)).tolist():
        which = int((np.abs(off[at]) / limit[at]).argmax())
        yield int(judged[at]), which, float(off[at, which])
