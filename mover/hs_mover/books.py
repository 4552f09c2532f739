"""The mover's view of one dataset's manifest: which parts have a line, what ranks have said.

The manifest may hold millions of lines; only those of one run are decoded, and only what can still matter is kept:
lines of parts whose source may still exist, and chunks of writers ``all`` that wait for a rank.
"""

from __future__ import annotations

import os
import secrets
import time
from array import array
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import xxhash

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.jsonl import UNREADABLE, AppendLog, Log
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, part_prefix, run_of_rid
from hs_formats.regular import open_regular
from hs_mover.task import Known, Reference

__all__ = ["Books", "ChunkKey", "chunk_key", "name_hash", "noted_names", "run_lines"]

ChunkKey = tuple[str, int, int]
"""rid, start and stop: what the parts of all ranks of one chunk share."""

_LINES_A_TURN = 50_000
_FETCH_S = 2.0


def chunk_key(name: PartName) -> ChunkKey:
    """The chunk that `name` is one rank's copy of."""
    return str(name.rid), name.start, name.stop


def run_lines(paths: DatasetPaths, run: str) -> Iterator[ManifestLine]:
    """The manifest lines of one run, of every mover, the first one for each name first.

    Raises:
        OSError: a manifest cannot be read.
    """
    needle = f'"{part_prefix(run)}'.encode()
    decoder = msgspec.json.Decoder(ManifestLine)
    for path in sorted(paths.manifest.glob("*.jsonl")):
        with open_regular(path) as file:
            for text in file:
                if needle not in text:
                    continue
                try:
                    line = decoder.decode(text)
                except UNREADABLE:
                    continue  # torn by a crash, ended by the next writer
                if text.endswith(b"\n") and PartName.try_parse(line.part) is not None:
                    yield line


def name_hash(part: str) -> int:
    """Eight bytes that stand for a part's name in memory."""
    return xxhash.xxh3_64_intdigest(part.encode())


def noted_names(paths: DatasetPaths, runs: Collection[str], *, turn: Callable[[], object]) -> dict[str, array[int]]:
    """`name_hash` of every part with a manifest line, by run, from one pass over the manifests.

    Args:
        paths: of the dataset.
        runs: whose parts are wanted.
        turn: called now and then.

    Raises:
        OSError: a manifest cannot be read.
    """
    found: dict[str, array[int]] = {run: array("Q") for run in runs}
    decoder = msgspec.json.Decoder(ManifestLine)
    for path in sorted(paths.manifest.glob("*.jsonl")):
        with open_regular(path) as file:
            for number, text in enumerate(file):
                if number % _LINES_A_TURN == 0:
                    turn()
                try:
                    line = decoder.decode(text)
                except UNREADABLE:
                    continue
                names = found.get(run_of_rid(line.part))
                if names is not None and text.endswith(b"\n"):
                    names.append(name_hash(line.part))
    return found


def _sync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


@dataclass(slots=True)
class _Chunk:
    """What the ranks of one chunk have written so far."""

    expected: frozenset[int]
    seen: set[int] = field(default_factory=set)
    first: Reference | None = None
    verdict: str = ""

    def add(self, line: ManifestLine) -> None:
        rank = line.name.rank
        self.seen.add(rank)
        if line.status == "stored" and self.first is None:
            self.first = Reference(rank, line.rows_xxh3, line.ids_xxh3)
        elif line.status == "quarantined" and line.reason.startswith("ranks disagree") and not self.verdict:
            self.verdict = line.reason

    @property
    def complete(self) -> bool:
        return self.seen >= self.expected

    @property
    def reference(self) -> Reference | None:
        if self.first is None:
            return None
        return Reference(self.first.rank, self.first.rows_xxh3, self.first.ids_xxh3, self.verdict)


class Books:
    """Manifest of one dataset, as one mover writes it.

    Args:
        paths: of the dataset.
        mover_id: names the manifest file that is written; all are read.
        make: makes a folder below the destination.
        doubtful: parts whose lines failed to be synced. The kernel may show such a line and yet lose it, so it does not
            count until it was appended once more. Outlives this object.
    """

    def __init__(self, paths: DatasetPaths, mover_id: str, *, make: Callable[[Path], None], doubtful: set[str]) -> None:
        self.paths = paths
        self._file = paths.manifest_file(mover_id)
        self._make = make
        self._doubtful = doubtful
        self._known: dict[str, Known] = {}
        self._chunks: dict[ChunkKey, _Chunk] = {}
        self._runs: set[str] = set()
        self._log: Log | None = None
        self._mover_id = mover_id
        self._life = secrets.token_hex(4)  # in an object store a log has one writer ever
        self._fetched_at_s = float("-inf")
        self._identity: tuple[int, int] = (0, 0)
        self._info: DatasetInfo | None = None
        self._info_identity: tuple[int, int, int] = (0, 0, 0)

    def has_run(self, run: str) -> bool:
        """`load_run` was called for `run`."""
        return run in self._runs

    def load_run(self, run: str, present: Container[str]) -> None:
        """Read what the manifests say of `run`.

        Of millions of lines only those can still matter whose source is among `present`, and chunks whose ranks have
        not all been seen.

        Raises:
            OSError: the destination cannot be read.
        """
        self.sync_written()
        for line in self._lines(run):
            self._note(line, remember=line.part in present)
        self._chunks = {key: chunk for key, chunk in self._chunks.items() if not chunk.complete}
        self._runs.add(run)

    def sync_written(self) -> None:
        """Make lines durable that a killed mover wrote and could not sync; of an object store, fetch all that is new.

        Raises:
            OSError: the destination fails.
        """
        self.paths.refresh()
        with suppress(FileNotFoundError):
            _sync_file(self._file)

    def known(self, name: PartName) -> Known | None:
        """The line of `name`, as far as it is remembered."""
        return self._known.get(str(name))

    def find(self, name: PartName) -> Known | None:
        """The line of `name`, looked up in the files. Safe to call from any thread.

        Raises:
            OSError: the destination cannot be read.
        """
        text = str(name)
        self.paths.refresh("manifest")
        for line in self._lines(name.rid.run):
            if line.part == text:
                return Known(line.status, line.xxh3)
        return None

    def reference(self, name: PartName) -> Reference | None:
        """What another rank has stored for the rows of `name`, while ranks are being compared."""
        chunk = self._chunks.get(chunk_key(name))
        return None if chunk is None or name.rank in chunk.seen else chunk.reference

    def info(self) -> DatasetInfo | None:
        """``dataset.json``, None as long as there is none that can be read.

        A dataset that was removed may begin anew with other settings while this mover lives, so each call looks.

        Raises:
            OSError: the destination cannot be read.
        """
        if self._info is None and not self.paths.local and time.monotonic() >= self._fetched_at_s + _FETCH_S:
            self._fetched_at_s = time.monotonic()
            self.paths.refresh("manifest")
        try:
            found = self.paths.info.stat()
        except FileNotFoundError:
            return None
        identity = (found.st_dev, found.st_ino, found.st_mtime_ns)
        if self._info is None or identity != self._info_identity:
            try:
                self._info = self.paths.read_info()
            except FormatError:
                return None  # the client's to report; parts are kept either way
            self._info_identity = identity
        return self._info

    def commit(self, lines: Collection[ManifestLine]) -> None:
        """Append `lines` and wait until they are on disk.

        Raises:
            OSError: nothing is certain; the same parts must be dealt with again.
        """
        if not lines:
            return
        try:
            log = self._open_log()
            log.append(lines)
            log.sync()
        except OSError:
            self.close()
            self._doubtful.update(line.part for line in lines)
            raise
        for line in lines:
            self._doubtful.discard(line.part)
            self._note(line, remember=True)

    def forget(self, names: Iterable[PartName]) -> None:
        """Drop the lines of parts whose source is gone."""
        for name in names:
            self._known.pop(str(name), None)
            chunk = self._chunks.get(chunk_key(name))
            if chunk is not None and chunk.complete:
                del self._chunks[chunk_key(name)]

    def close(self) -> None:
        """Close the manifest; the next commit opens it again."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _lines(self, run: str) -> Iterator[ManifestLine]:
        return (line for line in run_lines(self.paths, run) if line.part not in self._doubtful)

    def _open_log(self) -> Log:
        if not self.paths.local:
            self._log = self._log or self.paths.open_log("manifest", f"{self._mover_id}-{self._life}")
            return self._log
        if self._log is not None:
            try:
                found = self._file.stat()
                if (found.st_dev, found.st_ino) == self._identity:
                    return self._log
            except FileNotFoundError:
                pass  # the destination was emptied under us
            self.close()
        self._make(self._file.parent)
        log = AppendLog(self._file)
        found = os.stat(self._file)
        self._identity = (found.st_dev, found.st_ino)
        self._log = log
        return log

    def _note(self, line: ManifestLine, *, remember: bool) -> None:
        if line.part in self._known:
            return  # the first line counts
        if remember:
            self._known[line.part] = Known(line.status, line.xxh3)
        if line.writers == "all":
            chunk = self._chunks.setdefault(chunk_key(line.name), _Chunk(frozenset(line.expected_ranks)))
            chunk.add(line)
