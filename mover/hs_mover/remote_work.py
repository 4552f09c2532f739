"""What a worker does with one part where the destination is an object store; the rest is as for folders.

The encoded stream is sent as it comes; the object appears under its final name, whole, checked by the store and only if
there is none, in one step. So there is nothing to sync afterwards, and the outcome is durable when the worker returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hs_formats.dataset import UNCLAIMED
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.objectstore.blocks import BlockCache, RemoteObject
from hs_formats.part import PartInfo
from hs_formats.stored import CODECS, stored_blocks, stored_codec
from hs_mover.checks import PartDigest
from hs_mover.remote_destination import RemoteDestination
from hs_mover.store import PartWork
from hs_mover.task import Identity, Outcome, Task
from hs_mover.written import temporary_suffix

__all__ = ["RemoteWork"]


class _Faulty(Exception):
    """The part is not to be stored; the digest says why."""


class RemoteWork(PartWork):
    """One pass over one open source."""

    def __init__(self, task: Task, fd: int, identity: Identity) -> None:
        super().__init__(task, fd, identity)
        if not isinstance(task.destination, RemoteDestination):
            raise TypeError(f"{task.destination.location} is no object store")
        self._destination = task.destination
        self._objects = task.destination.store

    def stored_before(self, digest: PartDigest, info: PartInfo) -> Outcome | None:
        """Sending tells whether the name is taken; after a failure it may be under the suffix of another codec."""
        if not self._destination.failed:
            return None
        for suffix in dict.fromkeys(codec.suffix for codec in CODECS.values()):
            if suffix == self.task.codec.suffix:
                continue
            path, relative = self._object(suffix)
            try:
                self._objects.head(path)
            except FileNotFoundError:
                continue
            return self._there(path, relative, digest, info)
        return None

    def _object(self, suffix: str) -> tuple[str, str]:
        """Path below the destination and within the dataset, of the part stored with a codec of that suffix."""
        name, paths = self.task.name, self.task.paths
        if paths is None:
            return f"{UNCLAIMED}/{name.rid.run}/{str(name).removesuffix('.pt')}{suffix}", ""
        relative = paths.stored_name(name, suffix)
        return self._within(relative), relative

    def _within(self, relative: str) -> str:
        paths = self.task.paths
        return relative if paths is None else f"{paths.name}/{relative}"

    def _store(self, digest: PartDigest, info: PartInfo) -> Outcome:
        path, relative = self._object(self.task.codec.suffix)
        encode, layout = self.task.codec.encode, digest.layout(self.size)
        pieces = encode(self._pieces(digest), self.size, layout=layout, facts=digest.facts)

        def check() -> None:
            self._unchanged()
            if digest.problem:
                raise _Faulty

        try:
            size = self._send(path, pieces, check)
        except _Faulty:
            return self._bad(digest.problem, digest, info)
        if size is None:
            return self._there(path, relative, PartDigest(info), info)
        return self._outcome("stored", digest, info, path=relative, stored_bytes=size)

    def _send(
        self, path: str, pieces: Iterable[bytes | memoryview], check: Callable[[], None] = lambda: None
    ) -> int | None:
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}{temporary_suffix(self.task.mover_id)}"
        timed = _Timed(pieces)
        start_s = time.monotonic()
        try:
            return self._objects.upload(path, timed.pieces(), temporary=temporary, check=check)
        except OSError:
            self._destination.failed = True
            raise
        finally:
            spent_s = time.monotonic() - start_s
            self.task.meter.add(encoding_s=timed.spent_s, writing_s=max(0.0, spent_s - timed.spent_s))

    def _there(self, path: str, relative: str, digest: PartDigest, info: PartInfo) -> Outcome:
        """An object of this name is there: with a line, ours from before a crash, or whose answer was lost."""
        known = None if self.task.find_line is None else self.task.find_line(self.task.name)
        if known is not None:
            return self._again(digest, info, known)
        self._read_through(digest)
        if digest.problem:
            return self._bad(digest.problem, digest, info)
        there = RemoteObject(BlockCache(self._objects), self._objects, path)
        try:
            stored, codec = xxh3_hex(stored_blocks(there)), stored_codec(there)
        except FormatError:
            self._objects.delete([path])  # no line vouches for it and the source is whole
            return self._store(PartDigest(info), info)
        if stored != digest.xxh3:
            return self._conflict(digest, info, "a file of this name with other bytes is stored already")
        return self._outcome("stored", digest, info, path=relative, codec=codec, stored_bytes=there.size_bytes())

    def keep_bad(self, reason: str, xxh3: str) -> tuple[str, Path | None]:
        """Store the bytes as they are, and a note; returns the path for the manifest line, and no folder."""
        base = "" if self.task.paths is not None else f"{UNCLAIMED}/{self.task.name.rid.run}/"
        count = 1
        name = str(self.task.name)
        while True:
            path = self._within(f"{base}quarantine/{name}")
            size = self._send(path, self._pieces(PartDigest(None), paced=False))
            if size is not None or self._same(path, xxh3):
                break
            count += 1
            name = f"{self.task.name}.{count}"
        self._objects.put(f"{path}.reason.json", self._note(reason, xxh3))
        return f"quarantine/{name}", None

    def _same(self, path: str, xxh3: str) -> bool:
        there = self._objects.read(path)
        return len(there) == self.size and xxh3_hex([there]) == xxh3


class _Timed:
    """Passes pieces on and keeps how long making them took."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self.spent_s = 0.0
        self._pieces = pieces

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Once."""
        source = iter(self._pieces)
        while True:
            start_s = time.monotonic()
            piece = next(source, None)
            self.spent_s += time.monotonic() - start_s
            if piece is None:
                return
            yield piece
