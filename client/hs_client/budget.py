"""The plan before the run: what the rows need, what there is, and whether the one fits into the other. Pure logic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hs_client.admission import RecordCost
from hs_client.survey import Volume
from hs_client.tally import show_bytes, show_seconds

__all__ = ["BEST_RATIO", "Budget", "Room"]

BEST_RATIO = 2.0
"""No codec here makes hidden states so much smaller; what would not fit even then cannot fit."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is.

    Attributes:
        free_bytes: at the destination, None where nobody can say.
        free_files: inodes there, None where the file system does not count them.
        scratch_bytes: up to which scratch may fill.
        codec: of the mover.
        ratio: raw to stored bytes of what the dataset holds so far, 0 where it holds nothing.
        tokens_per_s: of the latest run of the dataset that lasted long enough, 0 without one.
    """

    free_bytes: int | None
    free_files: int | None
    scratch_bytes: int
    codec: str = ""
    ratio: float = 0.0
    tokens_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Budget:
    """A run's needs beside what there is."""

    volume: Volume
    cost: RecordCost
    room: Room

    @property
    def raw_bytes(self) -> int:
        """Of the stored parts before compression; the copies of several ranks are stored once."""
        return self.volume.tokens * (self.cost.bytes_per_token + 8)

    @property
    def best_bytes(self) -> float:
        """The least that may have to be stored."""
        v = self.volume
        least_bytes = (v.tokens - v.answer_tokens * v.bound) * (self.cost.bytes_per_token + 8)
        if self.room.codec == "none":
            return least_bytes
        return least_bytes / (self.room.ratio or BEST_RATIO)

    def refusals(self) -> list[str]:
        """Why the run cannot end well; empty where it may."""
        found: list[str] = []
        v, room = self.volume, self.room
        if room.free_bytes is not None and self.best_bytes > room.free_bytes:
            found.append(
                f"the destination has {show_bytes(room.free_bytes)} free, and the records need"
                f" {'at least ' if not room.ratio else 'about '}{show_bytes(self.best_bytes)}"
            )
        if room.free_files is not None and v.rows > room.free_files:
            found.append(
                f"the destination has {room.free_files:,} inodes free, and the records need {v.rows:,} and more"
            )
        mean = (v.tokens - v.answer_tokens * v.bound) // max(1, v.rows)
        if v.rows and self.cost.record(max(1, mean)) > room.scratch_bytes:
            need = show_bytes(self.cost.record(mean))
            found.append(
                f"a record of average length needs {need} of scratch, which may hold {show_bytes(room.scratch_bytes)}"
            )
        return found

    def lines(self) -> Iterator[str]:
        """For people."""
        v, room = self.volume, self.room
        about = "up to " if v.bound else "about " if v.sampled or v.answers else ""
        tokens = round(float(f"{v.tokens:.3g}")) if v.sampled or v.answers else v.tokens
        how = f" (estimated from {v.sampled} rows)" if v.sampled else ""
        stored = show_bytes(self.raw_bytes / room.ratio) if room.ratio else ""
        size = f"{about}{show_bytes(self.raw_bytes)} raw"
        if room.ratio:
            size += f", about {stored} stored ({room.ratio:.2f} times smaller, as so far)"
        elif room.codec != "none":
            size += ", stored smaller (how much is known once something is stored)"
        yield f"plan       {about}{v.rows:,} samples, {about}{tokens:,} tokens{how}, {size}"
        if v.answers:
            each = v.answer_tokens / v.answers
            known = "at most; how long they are is known once some are" if v.bound else "as so far"
            yield f"answers    about {v.answers:,} to be generated, counted with {each:,.0f} tokens each, {known}"
        if room.tokens_per_s:
            seconds = v.tokens / room.tokens_per_s
            yield f"time       about {show_seconds(seconds)} at {room.tokens_per_s:,.0f} tokens/s, as in the latest run"
        else:
            yield "time       not known before a run of this dataset has lasted a minute"
        free = "of unknown size" if room.free_bytes is None else f"with {show_bytes(room.free_bytes)} free"
        yield f"space      destination {free}, scratch up to {show_bytes(room.scratch_bytes)}"
        yield from (f"warning    {text}" for text in self._warnings())

    def _warnings(self) -> Iterator[str]:
        v, room = self.volume, self.room
        longest = self.cost.record(v.longest) if v.longest else 0
        if longest > room.scratch_bytes:
            yield (
                f"records of {v.longest:,} tokens need {show_bytes(longest)} of scratch, which may hold"
                f" {show_bytes(room.scratch_bytes)}: they will fail, the others go on"
            )
        known = room.ratio and not v.bound
        if room.free_bytes is not None and self.best_bytes <= room.free_bytes < self.raw_bytes and not known:
            yield (
                f"the destination has {show_bytes(room.free_bytes)} free, less than the"
                f" {show_bytes(self.raw_bytes)} of the raw records: whether they fit depends on how well they compress"
                + " and how long the answers are"
                * v.bound
            )
        if v.too_long:
            yield f"{v.too_long:,} rows are too long or unusable and will be rejected"
