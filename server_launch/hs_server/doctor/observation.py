"""What was seen of one canary request, what the markers promise, and a finding. Data and its names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hs_formats.tiling import Writers
from hs_server.doctor.canary import Prompt
from hs_server.doctor.records import RankRecord, merge
from hs_server.doctor.wire import Answer

__all__ = ["Expected", "Finding", "Observation", "listed", "slot_name"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and what to change."""

    text: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What the live markers of the server promise."""

    nonce: str
    boundaries: tuple[int, ...]
    dtype: str
    hidden_size: int
    ranks: tuple[int, ...]
    writers: Writers
    expected_ranks: tuple[int, ...]


@dataclass
class Observation:
    """One request: its answer, and what the ranks wrote or gave up of it. `every_rank`: all of them were to write."""

    prompt: Prompt
    rid: str
    every_rank: bool
    answer: Answer | None = None
    refused: str = ""
    records: dict[int, RankRecord] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Names the request for people."""
        alone = "alone" if self.rid[-2:] == f"{self.prompt.attempts()[0]:02d}" else "together"
        return f"`{self.prompt.name}` ({self.prompt.n} tokens, {alone})"

    def comparable(self) -> dict[int, RankRecord]:
        """The records that must each be whole: every rank's, or the one that the ranks share, as -1."""
        return self.records if self.every_rank else {-1: merge([self.records[rank] for rank in sorted(self.records)])}


def slot_name(slot: int, expected: Expected) -> str:
    """What people call slot number `slot`."""
    return "the last state" if slot == len(expected.boundaries) else f"boundary {expected.boundaries[slot]}"


def listed(items: Iterable[object]) -> str:
    """The items, comma-separated."""
    return ", ".join(map(str, items))
