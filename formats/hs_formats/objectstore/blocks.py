"""Ranges of objects through a bounded cache in memory, in blocks, so that many small reads are few requests."""

from __future__ import annotations

import threading
from collections import OrderedDict

from hs_formats.errors import FormatError
from hs_formats.objectstore.store import DatasetStore

__all__ = ["BLOCK_BYTES", "BlockCache", "RemoteObject"]

BLOCK_BYTES = 4 << 20
_CACHE_BYTES = 128 << 20


class BlockCache:
    """The blocks that were read last, of all objects of a store. Any number of threads may read.

    Args:
        store: whose objects. What is cached is never asked for again: objects of these names must not change.
        limit_bytes: of all blocks together.
    """

    def __init__(self, store: DatasetStore, *, limit_bytes: int = _CACHE_BYTES) -> None:
        self._store = store
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """What is held now."""
        return self._size_bytes

    def read(self, path: str, at: int, count: int, size: int) -> bytes:
        """`count` bytes from `at` of an object of `size` bytes, fewer at its end.

        Raises:
            OSError: the object is missing or the store fails.
        """
        stop = min(at + count, size)
        if stop <= at:
            return b""
        first, last = at // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES
        held = {number: block for number in range(first, last + 1) if (block := self._held(path, number)) is not None}
        number = first
        while number <= last:
            if number in held:
                number += 1
                continue
            end = number
            while end < last and end + 1 not in held:
                end += 1
            start = number * BLOCK_BYTES
            length = min((end + 1) * BLOCK_BYTES, size) - start
            # Not every server answers a range that is the whole object as a range (`rclone serve s3` does not).
            whole = length == size
            data = self._store.read(path)[:size] if whole else self._store.read_range(path, start, length)
            for each in range(number, end + 1):
                offset = (each - number) * BLOCK_BYTES
                held[each] = data[offset : offset + BLOCK_BYTES]
                self._keep(path, each, held[each])
            number = end + 1
        data = held[first] if first == last else b"".join(held[each] for each in range(first, last + 1))
        offset = at - first * BLOCK_BYTES
        return data[offset : offset + stop - at]

    def _held(self, path: str, number: int) -> bytes | None:
        with self._lock:
            block = self._blocks.get((path, number))
            if block is not None:
                self._blocks.move_to_end((path, number))
            return block

    def _keep(self, path: str, number: int, block: bytes) -> None:
        with self._lock:
            if (path, number) in self._blocks:
                return
            self._blocks[path, number] = block
            self._size_bytes += len(block)
            while self._size_bytes > self._limit_bytes:
                _, old = self._blocks.popitem(last=False)
                self._size_bytes -= len(old)


class RemoteObject:
    """A stored part in an object store: see `hs_formats.stored.StoredObject`."""

    def __init__(self, cache: BlockCache, store: DatasetStore, path: str) -> None:
        self._cache = cache
        self._store = store
        self._path = path
        self._size: int | None = None

    def __str__(self) -> str:
        return str(self._store.url / self._path)

    @property
    def name(self) -> str:
        """Last component of its path."""
        return self._path.rpartition("/")[2]

    def size_bytes(self) -> int:
        """See `StoredObject`."""
        if self._size is None:
            self._size = self._store.head(self._path).size_bytes
        return self._size

    def read_at(self, at: int, count: int) -> bytes:
        """See `StoredObject`."""
        data = self._cache.read(self._path, at, count, self.size_bytes())
        if len(data) != count:
            raise FormatError(f"{self} ends within {count} bytes of {at}")
        return data
