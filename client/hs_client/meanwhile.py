"""Samples that other clients of the dataset get done while this run goes on.

Several clients may work on one dataset, on whatever machines; all they know of each other are their ledgers. What is
done there need not be sent here, and where it has other content under the same id only one of both can count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_client.digests import DigestTable
from hs_client.rows import digest
from hs_formats.hashing import content_number
from hs_formats.jsonl import TailReader
from hs_formats.ledger import Done, Intent, LedgerLine, iter_ledger
from hs_formats.names import run_of_rid
from hs_formats.regular import open_regular

__all__ = ["Conflict", "Meanwhile"]

_BACK_BYTES = 1 << 20
_FETCH_S = 10.0
_DONE = b'{"type":"done",'


@dataclass(frozen=True, slots=True)
class Conflict:
    """A sample of this run that another client has got done with other content. `counts`: the record of `run`, the
    other one's, is what the dataset has."""

    sample_id: str
    where: str
    run: str
    counts: bool


class Meanwhile:
    """Follows the ledgers of other runs from where the history of the dataset was read.

    `look` and `conflicts` block, and may be called from another thread than the others, but not at the same time.

    Args:
        ledgers: their folder.
        run: this run's id.
        known_bytes: by file name, how much of a ledger was read already.
        ours: whether a sample is one that this run may send.
        fetch: brings the ledgers up to date where they lie in an object store.
    """

    def __init__(
        self,
        ledgers: Path,
        run: str,
        *,
        known_bytes: Mapping[str, int],
        ours: Callable[[str], bool],
        fetch: Callable[[], None] = lambda: None,
    ) -> None:
        self._fetch = fetch
        self._fetched_at_s = float("-inf")
        self._folder = ledgers
        self._own = f"{run}.jsonl"
        self._known_bytes = known_bytes
        self._ours = ours
        self._tails: dict[str, TailReader[LedgerLine]] = {}
        self._read_bytes: dict[str, int] = dict(known_bytes)
        self._fresh: list[LedgerLine] = []
        self._done = DigestTable()

    def look(self, *, closely: bool = False) -> None:
        """Read what other runs have noted since; `note` makes it known.

        `closely`: all of it that is durable by now, where otherwise a network file system may give what it remembers,
        and an object store is asked now and then.

        Raises:
            OSError: a ledger cannot be read; what was read is kept.
        """
        if closely or time.monotonic() >= self._fetched_at_s + _FETCH_S:
            self._fetched_at_s = time.monotonic()
            self._fetch()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                name = entry.name
                if not name.endswith(".jsonl") or name == self._own or not entry.is_file():
                    continue
                size = _opened_bytes(entry.path) if closely else entry.stat().st_size
                if size == self._read_bytes.get(name, 0):
                    continue
                tail = self._tails.get(name)
                if tail is None:
                    start = _line_start(Path(entry.path), self._known_bytes.get(name, 0))
                    tail = TailReader(Path(entry.path), LedgerLine, keep=_is_done, start_bytes=start)
                    self._tails[name] = tail
                self._fresh += tail.poll()
                self._read_bytes[name] = size

    def note(self) -> None:
        """Take in what `look` has read."""
        fresh, self._fresh = self._fresh, []
        for line in fresh:
            if isinstance(line, Done) and self._ours(line.sample_id):
                self._done.setdefault(digest(line.sample_id), content_number(line.content))

    def content(self, sample_id: str) -> int | None:
        """The content, 0 where no ledger has it, of a sample that somebody else has got done; None where nobody has."""
        return self._done.get(digest(sample_id)) if len(self._done) else None

    def conflicts(self) -> list[Conflict]:
        """Samples that this run and another one have got done with different contents.

        Raises:
            OSError: a ledger cannot be read.
        """
        self._fetched_at_s = float("-inf")
        self.look()
        self.note()
        if not len(self._done):
            return []
        ours: dict[str, tuple[str, str, int]] = {}
        rows: dict[str, str] = {}
        for line in iter_ledger(self._folder / self._own):
            if isinstance(line, Intent) and self.content(line.sample_id):
                rows[line.rid] = line.row
            elif isinstance(line, Done) and (content := content_number(line.content)):
                other = self.content(line.sample_id)
                if other and other != content:
                    ours.setdefault(line.sample_id, (line.rid, rows.get(line.rid, ""), content))
        found: dict[str, Conflict] = {}
        for line in self._others() if ours else ():
            own = ours.get(line.sample_id)
            if own is not None and content_number(line.content) not in (0, own[2]):
                conflict = Conflict(line.sample_id, own[1], run_of_rid(line.rid), counts=line.rid < own[0])
                found.setdefault(line.sample_id, conflict)
        return list(found.values())

    def _others(self) -> Iterator[Done]:
        for name in sorted(self._tails):
            for line in iter_ledger(self._folder / name):
                if isinstance(line, Done):
                    yield line


def _is_done(line: bytes) -> bool:
    return line.startswith(_DONE)


def _opened_bytes(path: str) -> int:
    """The size of a file when it is opened: on NFS what its server says, and not what this machine remembers."""
    with open_regular(Path(path)) as file:
        return os.fstat(file.fileno()).st_size


def _line_start(path: Path, at: int) -> int:
    """The start of the line of which byte `at` is a part: the last read may have met half a line."""
    begin = max(0, at - _BACK_BYTES)
    with open_regular(path) as file:
        file.seek(begin)
        before = file.read(at - begin)
    return begin + before.rfind(b"\n") + 1
