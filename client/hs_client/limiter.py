"""What limits a run just now: the party that it has waited for most of late. Pure logic."""

from __future__ import annotations

from collections import deque
from typing import Literal

__all__ = ["Limiter", "Party"]

Party = Literal["", "tokeniser", "server", "scratch", "mover"]
"""Whom the next request waits for; empty while none waits."""

_WINDOW_S = 15.0
_WORTH_NAMING = 0.1


class Limiter:
    """Adds up for whom was waited. Times are of one monotonic clock, in seconds."""

    def __init__(self, at_s: float) -> None:
        self._now: Party = ""
        self._since_s = at_s
        self._spans: deque[tuple[float, float, Party]] = deque()
        self._totals_s: dict[Party, float] = {}

    def wait_for(self, party: Party, at_s: float) -> None:
        """From now on the next request waits for `party`."""
        if party != self._now:
            self._spans.append((self._since_s, at_s, self._now))
            self._totals_s = self.totals_s(at_s)
            self._now, self._since_s = party, at_s
        while self._spans and self._spans[0][1] < at_s - _WINDOW_S:
            self._spans.popleft()

    def totals_s(self, at_s: float) -> dict[Party, float]:
        """Seconds since the start by party."""
        spent_s = self._totals_s.get(self._now, 0.0) + at_s - self._since_s
        return {**self._totals_s, self._now: spent_s}

    def shares(self, at_s: float) -> dict[Party, float]:
        """Share of the last `_WINDOW_S` by party, of the time since the start where that is shorter."""
        begin_s = at_s - _WINDOW_S
        spent: dict[Party, float] = {}
        spans: list[tuple[float, float, Party]] = [*self._spans, (self._since_s, at_s, self._now)]
        for start_s, stop_s, party in spans:
            spent[party] = spent.get(party, 0.0) + max(0.0, stop_s - max(start_s, begin_s))
        total_s = sum(spent.values())
        return {party: seconds / total_s for party, seconds in spent.items()} if total_s > 0 else {}

    def limiting(self, at_s: float) -> Party:
        """The party that was waited for most; empty when the run has hardly waited at all."""
        most = _WORTH_NAMING
        limiting: Party = ""
        for party, share in self.shares(at_s).items():
            if party and share >= most:
                most, limiting = share, party
        return limiting
