"""What a run has generated so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["GenerationCounts"]

_LATENCIES = 2000


@dataclass(slots=True)
class GenerationCounts:
    """Counters of one run. Times are of one monotonic clock, in seconds.

    `answers`: generated in it, of `tokens`; `reused`: read, since an earlier run had them; `cut`: of both, those that
    ended at the limit; `rejected`: samples lost for what their answers are; `retried`: requests without an answer.
    `latencies_s`: of the last answers.
    """

    answers: int = 0
    tokens: int = 0
    reused: int = 0
    cut: int = 0
    rejected: int = 0
    requests: int = 0
    retried: int = 0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    _in_flight: int = 0
    _since_s: float = 0.0
    _spent_s: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.requests or self.reused or self.rejected)

    def begin(self, at_s: float) -> None:
        """A request is sent."""
        self.requests += 1
        if not self._in_flight:
            self._since_s = at_s
        self._in_flight += 1

    def end(self, at_s: float) -> None:
        """It is over."""
        self._in_flight -= 1
        if not self._in_flight:
            self._spent_s += at_s - self._since_s

    def answered(self, tokens: int, seconds: float) -> None:
        """An answer of so many tokens came after `seconds`."""
        self.answers += 1
        self.tokens += tokens
        self.latencies_s.append(seconds)

    @property
    def seconds(self) -> float:
        """In which at least one request was in flight, up to the last time that none was."""
        return self._spent_s

    def add(self, facts: Mapping[str, Any]) -> None:
        """Counts of another run at the same time, as its `facts` have them."""
        self.answers += facts["answers"]
        self.tokens += facts["tokens"]
        self.reused += facts["reused"]
        self.cut += facts["cut"]
        self.rejected += facts["rejected"]
        self.requests += facts["requests"]
        self.retried += facts["retried"]
        self._spent_s = max(self._spent_s, facts["seconds"])

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "answers": self.answers,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 3),
            "reused": self.reused,
            "cut": self.cut,
            "rejected": self.rejected,
            "requests": self.requests,
            "retried": self.retried,
        }
