"""Append-only files as numbered, immutable objects: ``<folder>/<first>-<last>.jsonl``, ten digits each.

An object store appends to nothing. So each group of lines is an object of its own, made only if its number is free,
and a compaction is the exact concatenation of the segments whose numbers it names; those it covers go afterwards.
Whoever reads takes, at each number, the widest segment there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from hs_formats.errors import FormatError
from hs_formats.jsonl import encode_line
from hs_formats.objectstore.store import DatasetStore, StoreError

__all__ = ["COMPACT_EVERY", "Segment", "SegmentLog", "compactions", "covered", "reading_order"]

_NAME = re.compile(r"([0-9]{10})-([0-9]{10})\.jsonl", re.ASCII)
COMPACT_EVERY = 256
"""So many segments of one writer are made one, so that a listing stays short while it works."""

_COMPACT_BYTES = 256 << 20


class Segment(NamedTuple):
    """Numbers [first, last] of a log, from 1."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first:010d}-{self.last:010d}.jsonl"

    @classmethod
    def parse(cls, name: str) -> Segment | None:
        """None where `name` is no segment's."""
        match = _NAME.fullmatch(name)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            return None
        return cls(int(match[1]), int(match[2]))


def reading_order(found: Iterable[Segment], after: int = 0) -> list[Segment]:
    """The segments that hold every number above `after`, ascending, as few as there can be.

    The first may begin at or below `after`. Numbers that nobody has are passed over.
    """
    rest = sorted(segment for segment in found if segment.last > after)
    order: list[Segment] = []
    at, position = after + 1, 0
    while position < len(rest):
        best: Segment | None = None
        while position < len(rest) and rest[position].first <= at:
            if rest[position].last >= at and (best is None or rest[position].last > best.last):
                best = rest[position]
            position += 1
        if best is not None:
            order.append(best)
            at = best.last + 1
        elif position < len(rest):
            at = rest[position].first
    return order


def covered(found: Iterable[Segment]) -> set[Segment]:
    """Those of `found` that lie within another one."""
    segments = set(found)
    return {
        one
        for one in segments
        if any(other != one and other.first <= one.first and one.last <= other.last for other in segments)
    }


def compactions(sizes: Mapping[Segment, int], limit_bytes: int = _COMPACT_BYTES) -> list[list[Segment]]:
    """Which segments to make one of each: neighbours without a gap, of `limit_bytes` together at most.

    `sizes`: in bytes, in reading order.
    """
    groups: list[list[Segment]] = []
    size = 0
    for segment, size_bytes in sizes.items():
        if not groups or segment.first != groups[-1][-1].last + 1 or size + size_bytes > limit_bytes:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += size_bytes
    return [group for group in groups if len(group) > 1]


class SegmentLog:
    """One writer's end of a log, with the methods of `hs_formats.jsonl.AppendLog`.

    A folder has one writer at a time, which its name sees to: a run's id, or a mover's with the number of its life. A
    second one is noticed, by whichever of both comes too late.

    Raises:
        OSError: the store cannot be read.
    """

    def __init__(self, store: DatasetStore, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._segments = self._list()
        self._next = max((segment.last for segment in self._segments), default=0) + 1
        self._waiting: list[bytes] = []
        self._well = True

    def append(self, lines: Iterable[msgspec.Struct]) -> None:
        """Take `lines`; call `sync` to have them stored.

        Raises:
            FormatError: a text holds a lone surrogate, which UTF-8 cannot say; nothing was taken.
        """
        try:
            self._waiting += [encode_line(line) for line in lines]
        except UnicodeEncodeError as error:
            raise FormatError(f"{self._store.url / self._folder}: a line cannot be written: {error}") from error

    def sync(self) -> None:
        """Return once everything appended is stored.

        Raises:
            OSError: treat what was appended since the last `sync` as not written. It may be there none the less; the
                same lines appended again to this log then count as what is there. Or somebody else writes this log.
        """
        data, self._waiting = b"".join(self._waiting), []
        if not data:
            return
        self._well = False
        segment = Segment(self._next, self._next)
        # What is there with these very bytes is an earlier try whose answer was lost.
        if not self._store.create(self._path(segment), data) and self._store.read(self._path(segment)) != data:
            raise StoreError("another process writes this log", self._store.url / self._folder)
        self._well = True
        self._segments[segment] = len(data)
        self._next += 1
        if len(self._segments) >= COMPACT_EVERY:
            with suppress(OSError):  # the lines are stored; the next time will do
                self.compact()

    def compact(self) -> None:
        """Make few segments of many, none larger than can be done in memory.

        Raises:
            OSError: the store failed; nothing is lost by that.
        """
        sizes = self._segments = self._list()
        for group in compactions({segment: sizes[segment] for segment in reading_order(sizes)}):
            data = b"".join(self._store.read(self._path(segment)) for segment in group)
            whole = Segment(group[0].first, group[-1].last)
            self._store.create(self._path(whole), data)
            sizes[whole] = len(data)
        needless = covered(sizes)
        self._store.delete(self._path(segment) for segment in sorted(needless))
        for segment in needless:
            del sizes[segment]

    def close(self) -> None:
        """Let go; what was not synced is not written. What is there is made few segments, as far as the store works."""
        self._waiting = []
        if len(self._segments) > 1 and self._well:
            with suppress(OSError):
                self.compact()

    def _list(self) -> dict[Segment, int]:
        found: dict[Segment, int] = {}
        for entry in self._store.list(self._folder, deep=False):
            segment = Segment.parse(entry.path.rpartition("/")[2])
            if segment is not None:
                found[segment] = entry.size_bytes
        return found

    def _path(self, segment: Segment) -> str:
        return f"{self._folder}/{segment}"
