"""What a run has done so far: counts, bytes, latencies, why rows failed, and what was waited for."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from hs_client.attempt import Verdict
from hs_client.generate.counts import GenerationCounts
from hs_client.prepare import Ask, Prepared
from hs_formats.manifest import ManifestLine

__all__ = ["SHOWN_PROBLEMS", "End", "Reason", "Tally", "percentile", "reason_kind", "show_bytes", "show_seconds"]

SHOWN_PROBLEMS = 20

End = Literal["done", "adopted", "failed", "rejected", "elsewhere"]
"""How a sample ends in a run."""

_LATENCIES = 2000
_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|[0-9][0-9.,]*|\S+/\S+")
_MAX_REASON = 100
_MAX_KINDS = 100


@dataclass(slots=True)
class Reason:
    """Rows that ended alike: how many, and the first of them as an example."""

    fate: str
    kind: str
    count: int
    where: str
    reason: str


@dataclass(slots=True)
class Tally:
    """Counters of one run. `earlier` samples were done before it; `refused` ones are those of `rejected` that the plan
    had to send; `elsewhere` ones another client has got done meanwhile; `conflicts` are records of this run under ids
    that another client has got done with other content. `waited_s` is by what was waited for.

    `latencies_s` are those of the last of `answered` answers, in seconds. `on_failed` is told of every failed sample,
    and of those that were rejected for their answers; `on_end` of the row number of every sample that ends, and how,
    once the ledger has it.
    """

    total: int = 0
    earlier: int = 0
    identical: int = 0
    done: int = 0
    adopted: int = 0
    failed: int = 0
    rejected: int = 0
    refused: int = 0
    elsewhere: int = 0
    conflicts: int = 0
    retried: int = 0
    sent: int = 0
    answered: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    waited_s: Counter[str] = field(default_factory=Counter)
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=_LATENCIES))
    problems: list[str] = field(default_factory=list)
    reasons: dict[tuple[str, str], Reason] = field(default_factory=dict)
    on_failed: Callable[[Prepared | Ask], object] | None = None
    on_end: Callable[[int, End], object] | None = None
    generation: GenerationCounts = field(default_factory=GenerationCounts)

    @property
    def left(self) -> int:
        """Samples that are neither done, failed nor rejected."""
        return max(0, self.total - self.done - self.failed - self.rejected - self.elsewhere)

    def finish(self, sample: Prepared, lines: Iterable[ManifestLine], *, adopted: bool) -> None:
        """A sample is done, with the parts of `lines`."""
        self.add_record(sample.n, sample.spans, lines)
        self.adopted += adopted
        self._ended(sample.number, "adopted" if adopted else "done")

    def adopt(self, n: int, spans: Iterable[tuple[int, int]], lines: Iterable[ManifestLine], number: int = -1) -> None:
        """A sample of this row is done, with a record that an earlier run had sent for, as `add_record` takes it."""
        self.add_record(n, spans, lines)
        self.adopted += 1
        self._ended(number, "adopted")

    def find_elsewhere(self, number: int) -> None:
        """A sample of this row is done, by another client."""
        self.elsewhere += 1
        self._ended(number, "elsewhere")

    def answer(self, seconds: float) -> None:
        """A request was answered after `seconds`."""
        self.answered += 1
        self.latencies_s.append(seconds)

    def add_record(self, n: int, spans: Iterable[tuple[int, int]], lines: Iterable[ManifestLine]) -> None:
        """A record of `n` tokens is done, of which those in `spans` are trained on."""
        self.done += 1
        self.tokens += n
        self.trained_tokens += sum(stop - start for start, stop in spans)
        for line in lines:
            self.raw_bytes += line.raw_bytes
            self.stored_bytes += line.stored_bytes

    def _ended(self, number: int, how: End) -> None:
        if self.on_end is not None:
            self.on_end(number, how)

    def fail(self, sample: Prepared | Ask, verdict: Verdict) -> None:
        """A sample has failed for this run."""
        self.failed += 1
        self._note("failed", verdict.kind, sample.where, verdict.reason)
        self._show(f"{sample.where}: failed ({verdict.kind}): {verdict.reason}")
        if self.on_failed is not None:
            self.on_failed(sample)
        self._ended(sample.number, "failed")

    def reject_answer(self, sample: Ask, reason: str) -> None:
        """A sample can never be done for what the server has answered."""
        self.generation.rejected += 1
        self.reject(sample.where, reason, planned=False, number=sample.number)
        if self.on_failed is not None:
            self.on_failed(sample)

    def reject(self, where: str, reason: str, *, planned: bool = True, number: int = -1) -> None:
        """A row, of this number, can never be done; where not `planned` it was to be sent."""
        self.rejected += 1
        self.refused += not planned
        self._note("rejected", reason_kind(reason), where, reason)
        self._show(f"{where}: rejected: {reason}")
        self._ended(number, "rejected")

    def conflict(self, where: str, reason: str) -> None:
        """A record of this run is one of two with different contents."""
        self.conflicts += 1
        self._note("conflict", reason_kind(reason), where, reason)
        self._show(f"{where}: conflict: {reason}")

    def _note(self, fate: str, kind: str, where: str, reason: str) -> None:
        if len(self.reasons) >= _MAX_KINDS and (fate, kind) not in self.reasons:
            kind = "other"
        known = self.reasons.get((fate, kind))
        if known is None:
            self.reasons[fate, kind] = Reason(fate, kind, 1, where, reason)
        else:
            known.count += 1

    def _show(self, text: str) -> None:
        if len(self.problems) < SHOWN_PROBLEMS:
            self.problems.append(text)

    def waited(self, reason: str, seconds: float) -> None:
        """Add to the time that was waited, by what comes before the colon: the rest changes as time goes by."""
        self.waited_s[reason.partition(":")[0]] += seconds  # type: ignore[assignment]

    @property
    def exit_code(self) -> int:
        """0 when every sample is done, else 1."""
        return 1 if self.failed or self.rejected or self.conflicts else 0


def reason_kind(reason: str) -> str:
    """`reason` without what differs from row to row: numbers, names in quotes, paths."""
    return " ".join(_VARYING.sub("…", reason).split())[:_MAX_REASON]


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, by nearest rank; 0 where there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def show_bytes(count: float) -> str:
    """Bytes for people: ``1.50 GB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"


def show_seconds(seconds: float) -> str:
    """Seconds for people: ``1 h 02 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
