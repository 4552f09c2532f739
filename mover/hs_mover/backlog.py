"""The parts waiting in scratch: oldest first, one rank of a chunk at a time, bounded by bytes. No I/O."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass

from hs_formats.names import PartName
from hs_mover.books import ChunkKey, chunk_key

__all__ = ["Backlog", "Waiting"]


@dataclass(slots=True)
class Waiting:
    """One part in scratch. `retry_at_s` is on the monotonic clock; `settling` is what the file looked like, and since
    when, while it cannot be told whether it is finished; `trial`: it was begun to see whether the destination works."""

    name: PartName
    size_bytes: int
    modified_ns: int
    retry_at_s: float = 0.0
    settling: tuple[object, float] | None = None
    attempts: int = 0
    in_hand: bool = False
    trial: bool = False


class Backlog:
    """Parts by file name, and those among them that workers have in hand.

    Args:
        budget_bytes: how much workers may have in hand together; a larger part is taken alone.
        budget_parts: how many.
    """

    def __init__(self, *, budget_bytes: int, budget_parts: int) -> None:
        self._budget_bytes = budget_bytes
        self._budget_parts = budget_parts
        self._parts: dict[str, Waiting] = {}
        self._order: list[tuple[int, str]] = []
        self._later: list[tuple[float, str]] = []
        self._chunks: set[ChunkKey] = set()
        self._behind: dict[ChunkKey, list[tuple[int, str]]] = {}
        self._in_hand_bytes = 0
        self._in_hand = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, file_name: str) -> bool:
        return file_name in self._parts

    @property
    def names(self) -> Collection[str]:
        """File names of all parts waiting or in hand."""
        return self._parts.keys()

    @property
    def in_hand(self) -> int:
        """Parts that workers have."""
        return self._in_hand

    def get(self, file_name: str) -> Waiting | None:
        """The part of that file name."""
        return self._parts.get(file_name)

    def add(self, part: Waiting) -> None:
        """A part that was not there before."""
        file_name = str(part.name)
        self._parts[file_name] = part
        self.size_bytes += part.size_bytes
        heapq.heappush(self._order, (part.modified_ns, file_name))

    def take(self, now_s: float) -> Waiting | None:
        """The oldest part that may be begun now, or None when there is none or the budget is used up."""
        while self._later and self._later[0][0] <= now_s:
            _, file_name = heapq.heappop(self._later)
            if (part := self._parts.get(file_name)) is not None:
                heapq.heappush(self._order, (part.modified_ns, file_name))
        while self._order:
            entry = self._order[0]
            part = self._parts.get(entry[1])
            if part is None or part.in_hand:
                heapq.heappop(self._order)
                continue
            if part.retry_at_s > now_s:
                heapq.heappop(self._order)
                heapq.heappush(self._later, (part.retry_at_s, entry[1]))
                continue
            key = chunk_key(part.name)
            if key in self._chunks:  # the other rank's copy decides what to do with this one
                heapq.heappop(self._order)
                self._behind.setdefault(key, []).append(entry)
                continue
            if self._in_hand and (
                self._in_hand_bytes + part.size_bytes > self._budget_bytes or self._in_hand >= self._budget_parts
            ):
                return None
            heapq.heappop(self._order)
            part.in_hand = True
            self._chunks.add(key)
            self._in_hand += 1
            self._in_hand_bytes += part.size_bytes
            return part
        return None

    def give_back(self, part: Waiting, *, retry_at_s: float) -> None:
        """A part that could not be dealt with; it waits until `retry_at_s`."""
        self._release(part)
        part.retry_at_s = retry_at_s
        if str(part.name) in self._parts:
            heapq.heappush(self._later, (retry_at_s, str(part.name)))

    def done(self, part: Waiting) -> None:
        """A part that has left scratch, or is none of ours."""
        self._release(part)
        self._remove(part)

    def vanish(self, present: Collection[str]) -> None:
        """Forget parts whose files are not among `present`; those in hand are their worker's to report."""
        for file_name in [name for name in self._parts if name not in present]:
            part = self._parts[file_name]
            if not part.in_hand:
                self._remove(part)

    def next_retry_s(self) -> float | None:
        """When the first part that waits may be tried again."""
        return self._later[0][0] if self._later else None

    def _remove(self, part: Waiting) -> None:
        if self._parts.pop(str(part.name), None) is not None:
            self.size_bytes -= part.size_bytes

    def _release(self, part: Waiting) -> None:
        if not part.in_hand:
            return
        part.in_hand = False
        self._in_hand -= 1
        self._in_hand_bytes -= part.size_bytes
        key = chunk_key(part.name)
        self._chunks.discard(key)
        for entry in self._behind.pop(key, ()):
            heapq.heappush(self._order, entry)
