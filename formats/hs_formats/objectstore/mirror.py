"""The books of a dataset in an object store, as plain local files that grow, for everything that reads books.

``dataset.json``, ``verified.json`` and whole ``*.jsonl`` objects are copied when they change; the segments of a log
(`hs_formats.objectstore.segments`) are appended one after the other to a file of the log's name. What was fetched once
is not fetched again, so that opening a dataset costs a few listings. Payload is never copied here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from hs_formats.durable import replace_file
from hs_formats.objectstore.segments import Segment, reading_order
from hs_formats.objectstore.store import DatasetStore, Listed

__all__ = ["BOOKS", "BooksMirror"]

BOOKS = ("manifest", "ledger", "timeline", "responses")
"""Folders of books below a dataset."""

_FILES = ("dataset.json", "verified.json")
_TRIES = 5


class _Log(msgspec.Struct):
    """A file made of segments: its size, the next number, and at which byte each number began that began a segment."""

    size_bytes: int = 0
    next: int = 1
    starts: dict[int, int] = {}


class _State(msgspec.Struct):
    """What the mirror holds: tag and size of whole objects by path, logs by file."""

    born: str = ""
    whole: dict[str, tuple[str, int]] = {}
    logs: dict[str, _Log] = {}


class BooksMirror:
    """`folder` is this user's own, and may be shared by any number of processes."""

    def __init__(self, store: DatasetStore, folder: Path) -> None:
        self.folder = folder
        self._store = store

    def refresh(self, books: Sequence[str] = BOOKS) -> None:
        """Bring the files of `books`, and those directly in the dataset, up to date.

        Raises:
            OSError: the store or the mirror's own disk fails.
        """
        with self._locked():
            for _ in range(_TRIES):
                try:
                    self._refresh(books)
                    return
                except FileNotFoundError:
                    continue  # compacted between listing and reading
            self._refresh(books)

    def _refresh(self, books: Sequence[str]) -> None:
        top = {entry.path: entry for entry in self._store.list(deep=False) if entry.path in _FILES}
        state = self._read_state()
        info = top.get("dataset.json")
        born = "" if info is None else f"{info.e_tag} {info.modified_s}"
        if state.born != born:
            # Another dataset than the one that was mirrored has the name now.
            for path in [*state.whole, *state.logs]:
                (self.folder / path).unlink(missing_ok=True)
            state = _State(born=born)
        try:
            self._whole(state, {path: top[path] for path in top}, _FILES)
            for book in books:
                self._book(state, book)
        finally:
            replace_file(self._state_file, msgspec.json.encode(state))

    def _book(self, state: _State, book: str) -> None:
        whole: dict[str, Listed] = {}
        segments: dict[str, dict[Segment, str]] = {}
        for entry in self._store.list(book):
            path = PurePosixPath(entry.path)
            if path.suffix != ".jsonl":
                continue
            if len(path.parts) == 2:
                whole[entry.path] = entry
            elif len(path.parts) == 3 and (segment := Segment.parse(path.name)) is not None:
                segments.setdefault(str(path.parent), {})[segment] = entry.path
        known = [path for path in state.whole if path.startswith(f"{book}/")]
        self._whole(state, whole, [*whole, *known])
        files = {f"{log}.jsonl" if f"{log}.jsonl" not in whole else f"{log}.segments.jsonl": log for log in segments}
        for file in [file for file in state.logs if file.startswith(f"{book}/") and file not in files]:
            del state.logs[file]
            if file not in whole:
                (self.folder / file).unlink(missing_ok=True)
        for file, log in files.items():
            self._append(state.logs.setdefault(file, _Log()), self.folder / file, segments[log])

    def _whole(self, state: _State, found: dict[str, Listed], paths: Sequence[str]) -> None:
        for path in paths:
            entry, target = found.get(path), self.folder / path
            if entry is None:
                if state.whole.pop(path, None) is not None:
                    target.unlink(missing_ok=True)
                continue
            tag = (f"{entry.e_tag} {entry.modified_s}", entry.size_bytes)
            if state.whole.get(path) != tag or not target.exists():
                target.parent.mkdir(exist_ok=True)
                replace_file(target, self._store.read(path))
                state.whole[path] = tag

    def _append(self, log: _Log, target: Path, segments: dict[Segment, str]) -> None:
        target.parent.mkdir(exist_ok=True)
        if segments and max(segment.last for segment in segments) < log.next - 1:
            log.size_bytes, log.next, log.starts = 0, 1, {}  # shorter than what was read: begun anew
        with target.open("ab") as file:
            if file.tell() != log.size_bytes:
                if file.tell() < log.size_bytes:
                    log.size_bytes, log.next, log.starts = 0, 1, {}
                file.truncate(log.size_bytes)  # a refresh that was killed
            for segment in reading_order(segments, log.next - 1):
                skip = 0
                if segment.first < log.next:
                    start = log.starts.get(segment.first)
                    if start is None:
                        # Compacted from where nobody here has looked; all of it once more.
                        log.size_bytes, log.next, log.starts = 0, 1, {}
                        file.truncate(0)
                        raise FileNotFoundError(2, "the log must be read anew", str(target))
                    skip = log.size_bytes - start
                path = segments[segment]
                data = self._store.read_range(path, skip, 1 << 40) if skip else self._store.read(path)
                file.write(data)
                file.flush()
                log.starts[segment.first] = log.size_bytes - skip
                log.starts.setdefault(log.next, log.size_bytes)
                log.size_bytes += len(data)
                log.next = segment.last + 1

    @property
    def _state_file(self) -> Path:
        return self.folder / ".mirror.json"

    def _read_state(self) -> _State:
        try:
            return msgspec.json.decode(self._state_file.read_bytes(), type=_State)
        except (FileNotFoundError, msgspec.MsgspecError):
            return _State()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
