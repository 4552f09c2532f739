"""When the parts of a record cover its prompt exactly once. Pure logic, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["WRITERS", "Coverage", "Writers", "cover", "record_complete"]

Writers = Literal["first", "spread", "all"]
WRITERS: tuple[Writers, ...] = ("first", "spread", "all")


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is missing from, and what is doubled in, [0, n)."""

    gaps: tuple[tuple[int, int], ...]
    overlaps: tuple[tuple[int, int], ...]

    @property
    def exact(self) -> bool:
        """Every row is there once."""
        return not self.gaps and not self.overlaps


def cover(n: int, ranges: Iterable[tuple[int, int]]) -> Coverage:
    """How row ranges [start, stop) cover [0, n). Rows beyond n count as overlap."""
    gaps: list[tuple[int, int]] = []
    overlaps: list[tuple[int, int]] = []
    at = 0
    for start, stop in sorted(ranges):
        if start > at:
            gaps.append((at, start))
        elif start < at:
            overlaps.append((start, min(stop, at)))
        at = max(at, stop)
    if at < n:
        gaps.append((at, n))
    elif at > n:
        overlaps.append((n, at))
    return Coverage(tuple(gaps), tuple(overlaps))


def record_complete(
    n: int, parts: Iterable[tuple[int, int, int]], *, writers: Writers, expected_ranks: Sequence[int]
) -> bool:
    """True when parts (rank, start, stop) make a whole record.

    With writers `first` or `spread` the union over ranks tiles [0, n) exactly once; with `all` the parts of each
    expected rank do, and an unexpected rank's parts spoil it unless they do too. Without parts it is never whole.
    """
    parts = list(parts)
    if not parts:
        return False
    if writers != "all":
        return cover(n, ((start, stop) for _, start, stop in parts)).exact
    by_rank: dict[int, list[tuple[int, int]]] = {rank: [] for rank in expected_ranks}
    for rank, start, stop in parts:
        by_rank.setdefault(rank, []).append((start, stop))
    return all(cover(n, ranges).exact for ranges in by_rank.values())
