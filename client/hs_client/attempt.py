"""One request and its record: which parts were seen, what is still promised, and what has become of it. Pure logic."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum

from hs_client.admission import RecordCost
from hs_client.prepare import Prepared
from hs_formats.hashing import ids_xxh3
from hs_formats.index import record_parts
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName
from hs_formats.tiling import Writers, cover, record_complete

__all__ = ["Answer", "Attempt", "Phase", "Verdict", "judge_answer"]

Key = tuple[int, int, int]
"""Rank, start and stop of a part."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server said about a request it has finished."""

    finish_type: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int


class Phase(Enum):
    """Where an attempt stands.

    FLYING: no answer yet. ANSWERED: waiting for its parts. LINGERING: over for its sample, but the server may still
    write parts, so the promise stands until the part time-out. CLOSED: nothing more is expected.
    """

    FLYING = "flying"
    ANSWERED = "answered"
    LINGERING = "lingering"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How an attempt ended: done when `kind` is empty, else failed with a short kind and the reason."""

    kind: str = ""
    reason: str = ""

    @property
    def done(self) -> bool:
        """The record is complete, durable and right."""
        return not self.kind


def judge_answer(answer: Answer, n: int) -> Verdict:
    """Whether the server's answer allows the record of n tokens to count."""
    if answer.finish_type == "abort":
        return Verdict("aborted", f"the server aborted the request: {answer.finish_reason or 'no reason given'}")
    if answer.prompt_tokens != n:
        return Verdict("prompt changed", f"the server counted {answer.prompt_tokens} prompt tokens where {n} were sent")
    if answer.cached_tokens != 0:
        return Verdict(
            "cached tokens",
            f"{answer.cached_tokens} tokens came from the prefix cache and were not captured; the server needs "
            "--disable-radix-cache",
        )
    return Verdict()


@dataclass(slots=True)
class Attempt:
    """One rid. Parts are counted once they were seen in scratch or in the manifest, whatever becomes of them later."""

    rid: str
    sample: Prepared
    tries: int
    cost: RecordCost
    writers: Writers
    expected_ranks: Sequence[int]
    phase: Phase = Phase.FLYING
    answer: Answer | None = None
    deadline_s: float = 0.0
    seen: set[Key] = field(default_factory=set)
    lines: dict[Key, ManifestLine] = field(default_factory=dict)
    _seen_rows: int = 0
    _whole: bool = False

    def promised_bytes(self) -> int:
        """What this request may still write to scratch."""
        if self.phase is Phase.CLOSED:
            return 0
        return self.cost.rest(self.sample.n, seen_rows=self._seen_rows, seen_parts=len(self.seen))

    def note_part(self, part: PartName) -> bool:
        """A part lies in scratch; True when it was not known."""
        return self._note((part.rank, part.start, part.stop))

    def note_line(self, line: ManifestLine) -> bool:
        """The mover has dealt with a part; True when that was not known."""
        name = line.name
        key = (name.rank, name.start, name.stop)
        self._note(key)
        new = key not in self.lines
        self.lines.setdefault(key, line)
        return new

    def _note(self, key: Key) -> bool:
        if key in self.seen:
            return False
        self.seen.add(key)
        self._seen_rows += key[2] - key[1]
        return True

    @property
    def all_seen(self) -> bool:
        """Every row has appeared, in scratch or in the manifest."""
        if not self._whole and self._seen_rows >= self.sample.n:
            self._whole = self._complete(self.seen)
        return self._whole

    def all_there(self, in_scratch: Collection[Key]) -> bool:
        """Every row is in scratch now or in the manifest."""
        return self._complete({*in_scratch, *self.lines})

    def _complete(self, keys: Collection[Key]) -> bool:
        return record_complete(self.sample.n, keys, writers=self.writers, expected_ranks=self.expected_ranks)

    def verdict(self, now_s: float, in_scratch: Collection[Key]) -> Verdict | None:
        """How an answered attempt has ended; None while its parts are still on their way.

        Parts that lie in scratch wait for the mover for as long as it takes: only missing ones run into the deadline.
        """
        bad = next((line for line in self.lines.values() if line.status == "quarantined"), None)
        if bad is not None:
            return Verdict("quarantined", f"{bad.part}: {bad.reason or 'the mover gives no reason'}")
        stored = record_parts(self.sample.n, self.lines.values())
        if stored is not None:
            return self._check_ids()
        if now_s >= self.deadline_s and not self.all_there(in_scratch):
            return Verdict("hook silent", self._missing())
        return None

    def _check_ids(self) -> Verdict:
        for (_, start, stop), line in sorted(self.lines.items()):
            if line.ids_xxh3 != ids_xxh3(self.sample.ids[start:stop]):  # type: ignore[arg-type]
                return Verdict("other ids", f"{line.part} holds other token ids than were sent")
        return Verdict()

    def _missing(self) -> str:
        if not self.seen:
            return "hook silent: the server answered, but no part of its record ever appeared"
        gaps = cover(self.sample.n, ((start, stop) for _, start, stop in self.seen)).gaps
        if not gaps:
            return "hook silent: parts of some ranks are missing, or parts were removed before the mover stored them"
        shown = ", ".join(f"[{start}, {stop})" for start, stop in gaps[:4])
        return f"hook silent: rows {shown} of {self.sample.n} never appeared"
