"""An object store in memory, with answers that get lost on request: see `hs_formats.objectstore.store`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from hs_formats.location import ObjectUrl
from hs_formats.objectstore.store import Listed, StoreUnreachable

__all__ = ["MemoryStore"]


class MemoryStore:
    """`lose` is asked before the answer of each change is given: True loses it, after the change was made."""

    def __init__(self, *, lose: Callable[[], bool] = lambda: False) -> None:
        self.objects: dict[str, bytes] = {}
        self.reads = 0
        self._tags: dict[str, int] = {}
        self._counter = itertools.count(1)
        self._lose = lose

    @property
    def url(self) -> ObjectUrl:
        return ObjectUrl("s3", "memory", "set")

    def list(self, folder: str = "", *, deep: bool = True) -> Iterator[Listed]:
        prefix = f"{folder}/" if folder else ""
        found = [path for path in sorted(self.objects) if path.startswith(prefix)]
        return (self.head(path) for path in found if deep or "/" not in path[len(prefix) :])

    def read(self, path: str) -> bytes:
        self.reads += 1
        if path not in self.objects:
            raise FileNotFoundError(2, "there is no such object", path)
        return self.objects[path]

    def read_range(self, path: str, start: int, count: int) -> bytes:
        return self.read(path)[start : start + count]

    def head(self, path: str) -> Listed:
        if path not in self.objects:
            raise FileNotFoundError(2, "there is no such object", path)
        return Listed(path, len(self.objects[path]), float(self._tags[path]), str(self._tags[path]))

    def create(self, path: str, data: bytes) -> bool:
        if path in self.objects:
            return False
        self.put(path, data)
        return True

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self._tags[path] = next(self._counter)
        if self._lose():
            raise StoreUnreachable("the answer was lost", path)

    def upload(
        self,
        path: str,
        pieces: Iterable[bytes | memoryview],
        *,
        temporary: str,
        check: Callable[[], None] = lambda: None,
    ) -> int | None:
        del temporary
        data = b"".join(pieces)
        check()
        return len(data) if self.create(path, data) else None

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.objects.pop(path, None)
