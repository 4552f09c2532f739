"""What is known about lines that were read before, so that a resumed run need not parse a million rows to name them.

A row's id is a hash of its canonical JSON, or stands in it; finding it takes far longer than hashing the line as it is.
So that hash is kept with what was found. It says nothing about what is done, that is the ledgers' alone to say, and a
line that has changed by one byte is read anew. A cache that is damaged, or was written by another version of the code
that reads rows, is not used. It may be deleted at any time.
"""

from __future__ import annotations

import functools
import hashlib
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from hs_formats import hashing
from hs_formats.durable import write_all
from hs_formats.hashing import XXH3
from hs_formats.regular import open_regular

__all__ = ["Facts", "RowCache", "cache_file", "line_hash"]

_MAGIC = b"hs-rows1"
_HEADER = struct.Struct("<8s16sQ16s")
"""Magic, version of the reading code, number of entries, xxh3-128 of the entries."""
_ENTRY = struct.Struct("<16s16sQQ")
"""Hash of the line, digest of the sample id, content, tokens << 3 | ask << 2 | tokenizer << 1 | named."""

_READING_CODE = ("messages.py", "row_cache.py", "row_error.py", "rows.py", "sharegpt.py")
_MIN_ROWS = 5_000
_MIN_BYTES = 16 << 20


class Facts(NamedTuple):
    """A row without its content.

    `key`: digest of its sample id. `content`: as in the ledger, as a number, 0 where the row has no id of its own.
    `named`: it has. `tokens`: number of its `input_ids`, else 0. `needs_tokenizer`: it is of another kind. `ask`: the
    server answers it first.
    """

    key: bytes
    content: int
    named: bool
    tokens: int
    needs_tokenizer: bool
    ask: bool = False


def line_hash(line: bytes) -> bytes:
    """Sixteen bytes that stand for a line."""
    return xxhash.xxh3_128_digest(line)


def cache_file(root: Path, name: str, regenerate: str = "") -> Path:
    """Where a dataset keeps the cache for the prompts file that is called `name`, and which answers are generated."""
    where = os.fsencode(os.path.abspath(name))  # noqa: PTH100 - nothing need exist
    # The copy of a dataset's books outlives the dataset, which may begin anew with other answers.
    key = where + b"\0" + regenerate.encode() if regenerate else where
    return root / f".rows-{xxhash.xxh3_64_hexdigest(key)}"


class RowCache:
    """The entries of one cache file, and what a pass over the prompts file adds to them.

    Lines are mostly asked for in the order in which they were added.
    """

    def __init__(self, entries: bytes | mmap.mmap = b"", count: int = 0) -> None:
        self._entries = entries
        self._offset = _HEADER.size
        self._count = count
        self._next = 0
        self._asked = bytearray(count)
        self._added = bytearray()
        self._line_bytes = 0
        self._sorted: tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]] | None = None

    @classmethod
    def load(cls, path: Path) -> RowCache:
        """The cache at `path`, an empty one where that cannot be used."""
        try:
            with open_regular(path) as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, version, count, checksum = _HEADER.unpack_from(content)
        except (OSError, ValueError, struct.error):
            return cls()
        whole = len(content) == _HEADER.size + count * _ENTRY.size
        if (magic, version) != (_MAGIC, _code_version()) or not whole:
            return cls()
        if xxhash.xxh3_128_digest(memoryview(content)[_HEADER.size :]) != checksum:
            return cls()
        return cls(content, count)

    def __len__(self) -> int:
        return self._count

    def get(self, line: bytes) -> Facts | None:
        """What is known about the line with this `line_hash`."""
        at = self._next
        if at >= self._count or self._hash_at(at) != line:
            at = self._search(line)
            if at < 0:
                return None
        self._next = at + 1
        self._asked[at] = 1
        _, key, content, rest = _ENTRY.unpack_from(self._entries, self._offset + at * _ENTRY.size)
        return Facts(key, content, bool(rest & 1), rest >> 3, bool(rest & 2), bool(rest & 4))

    def _hash_at(self, at: int) -> bytes:
        start = self._offset + at * _ENTRY.size
        return bytes(self._entries[start : start + 16])

    def _search(self, line: bytes) -> int:
        if not self._count:
            return -1
        if self._sorted is None:
            all_ = np.frombuffer(self._entries, "<u8", self._count * (_ENTRY.size // 8), self._offset)
            first = np.ascontiguousarray(all_[:: _ENTRY.size // 8])
            by_hash = np.argsort(first, kind="stable")
            self._sorted = first[by_hash], by_hash
        firsts, order = self._sorted
        wanted = np.uint64(int.from_bytes(line[:8], "little"))
        at = int(np.searchsorted(firsts, wanted))
        while at < self._count and firsts[at] == wanted:
            if self._hash_at(int(order[at])) == line:
                return int(order[at])
            at += 1
        return -1

    def add(self, line: bytes, size_bytes: int, facts: Facts) -> None:
        """Note the line of this hash and size, which `get` did not know."""
        rest = facts.tokens << 3 | facts.ask << 2 | facts.needs_tokenizer << 1 | facts.named
        self._added += _ENTRY.pack(line, facts.key, facts.content, rest)
        self._line_bytes += size_bytes

    def save(self, path: Path) -> None:
        """Write what was asked for and what was added to `path`, if something was added and it is worth it.

        Raises:
            OSError: it cannot be written.
        """
        if len(self._added) < _MIN_ROWS * _ENTRY.size and self._line_bytes < _MIN_BYTES:
            return
        old = np.frombuffer(self._entries, f"V{_ENTRY.size}", self._count, self._offset) if self._count else None
        kept = b"" if old is None else old[np.frombuffer(self._asked, np.bool_)].tobytes()
        count = (len(kept) + len(self._added)) // _ENTRY.size
        checksum = XXH3(kept)
        checksum.update(self._added)
        header = _HEADER.pack(_MAGIC, _code_version(), count, checksum.digest())
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                write_all(file.fileno(), [header, kept, self._added])
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@functools.cache
def _code_version() -> bytes:
    """A hash of the code that decides what a row is: entries of other code are not used."""
    digest = hashlib.blake2b(digest_size=16)
    here = Path(__file__).parent
    for path in (*(here / name for name in _READING_CODE), Path(hashing.__file__)):
        digest.update(path.read_bytes())
    return digest.digest()
