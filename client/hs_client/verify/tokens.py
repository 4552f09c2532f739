"""Tokens in states: low in a model a state still shows which token it is of. So rows can be held against their ids.

Of each token the mean state over the set is kept (in some channels, each in units of its own scatter). The states of a
sample lie near the means of its own tokens; rows of another prompt do not, and rows that moved by one lie near the
means of its neighbours. Where the lowest boundary is so high that nothing of this is seen, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Match", "Sketch", "TokenMeans", "verdict"]

Floats = npt.NDArray[np.floating]
Ids = npt.NDArray[np.int64]

_MIN_SCORED = 6
_TELLS = 0.2


@dataclass(frozen=True, slots=True)
class Sketch:
    """Some tokens of one sample: `ids` int64 [m], the ids before and after each (-1 where there is none), and of
    `states` [m, C] some channels in the lowest slot."""

    ids: Ids
    before: Ids
    after: Ids
    states: Floats

    def second_half(self) -> Sketch:
        """The later tokens alone, which prompts that begin alike have for themselves."""
        half = slice(len(self.ids) // 2, None)
        return Sketch(self.ids[half], self.before[half], self.after[half], self.states[half])


@dataclass(frozen=True, slots=True)
class Match:
    """Mean cosine between the states of some tokens and the means of their ids, and of the ids before and after.

    `sigma` is the standard error of `own`, `scored` the number of tokens that could be compared.
    """

    own: float
    before: float
    after: float
    sigma: float
    scored: int


class TokenMeans:
    """Sums of states by token over a set, in standard units of each channel; filled first, then asked.

    Args:
        channels: C, the width of all states given.
    """

    def __init__(self, channels: int) -> None:
        self._sums = np.zeros((0, channels), dtype=np.float64)
        self._counts = np.zeros(0, dtype=np.int64)
        self.channels = channels
        self._total = np.zeros(channels)
        self._square = np.zeros(channels)
        self._rows = 0
        self._mean = np.zeros(channels)
        self._scale = np.ones(channels)

    def measure(self, sketch: Sketch) -> None:
        """First pass: learn each channel's mean and scatter."""
        states = sketch.states
        good = states[np.isfinite(states).all(axis=1)].astype(np.float64)
        self._total += good.sum(axis=0)
        self._square += (good**2).sum(axis=0)
        self._rows += len(good)
        mean = self._total / max(1, self._rows)
        variance = self._square / max(1, self._rows) - mean**2
        self._mean, self._scale = mean, np.sqrt(np.maximum(variance, 1e-30))

    def add(self, sketch: Sketch) -> None:
        """Second pass."""
        known = sketch.ids >= 0
        ids, units = sketch.ids[known], self._units(sketch.states)[known]
        if len(ids) and int(ids.max()) >= len(self._counts):
            size = int(ids.max()) + 1
            self._counts = np.concatenate([self._counts, np.zeros(size - len(self._counts), dtype=np.int64)])
            self._sums = np.concatenate([self._sums, np.zeros((size - len(self._sums), self.channels))])
        np.add.at(self._sums, ids, units)
        np.add.at(self._counts, ids, 1)

    def _units(self, states: Floats) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            units = (states - self._mean) / self._scale
        # A massive activation must not outvote all the other channels.
        return np.clip(np.nan_to_num(units, nan=0.0, posinf=0.0, neginf=0.0), -4, 4)

    def match(self, sketch: Sketch) -> Match:
        """How well a sample's states fit its ids, and the ids around each; its own share is left out."""
        units = self._units(sketch.states)
        unique, inverse = np.unique(sketch.ids, return_inverse=True)
        sums = np.zeros((len(unique), self.channels))
        np.add.at(sums, inverse, units)
        totals = np.bincount(inverse, minlength=len(unique))

        def cosines(tokens: Ids) -> Floats:
            at = np.minimum(np.searchsorted(unique, tokens), len(unique) - 1)
            mine = unique[at] == tokens
            return self._cosines(units, tokens, np.where(mine[:, None], sums[at], 0.0), np.where(mine, totals[at], 0))

        if len(sketch.ids) < _MIN_SCORED:
            return Match(1.0, 0.0, 0.0, 1.0, 0)
        own, before, after = cosines(sketch.ids), cosines(sketch.before), cosines(sketch.after)
        scored = int(np.isfinite(own).sum())
        if scored < _MIN_SCORED:
            return Match(1.0, 0.0, 0.0, 1.0, 0)
        return Match(_mean(own), _mean(before), _mean(after), float(np.nanstd(own)) / np.sqrt(scored), scored)

    def _cosines(self, units: Floats, ids: Ids, own_sums: Floats, own_counts: npt.NDArray[np.integer]) -> Floats:
        known = (ids >= 0) & (ids < len(self._counts))
        at = np.where(known, ids, 0)
        sums = self._sums[at] - own_sums
        counts = np.where(known, self._counts[at] - own_counts, 0)
        norm = np.linalg.norm(units, axis=1) * np.linalg.norm(sums, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosines = np.einsum("mc,mc->m", units, sums) / norm
        return np.where((counts > 0) & (norm > 0), cosines, np.nan)


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if int(np.isfinite(values).sum()) >= _MIN_SCORED else 0.0


def verdict(match: Match, typical: float, scatter: float) -> str:
    """What is wrong with a sample whose `match` is compared with the set's typical own cosine and its scatter.

    Returns:
        "" when it fits, else "shifted" or "other rows".
    """
    if match.scored < _MIN_SCORED or typical < _TELLS:
        return ""
    neighbour = max(match.before, match.after)
    if neighbour > match.own + max(0.1, 4 * match.sigma) and neighbour > 0.5 * typical:
        return "shifted"
    limit = typical - max(8 * np.hypot(match.sigma, scatter), 0.15)
    return "other rows" if match.own < max(limit, 0.3 * typical) else ""
