"""What a dataset needs of an object store, as a protocol: the narrow waist between formats and any client library."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from hs_formats.location import ObjectUrl

__all__ = ["DatasetStore", "Listed", "StoreError", "StoreUnreachable"]


class StoreError(OSError):
    """The store refused or failed; `filename` is the URL, `strerror` one line."""

    def __init__(self, reason: str, url: object, number: int = errno.EIO) -> None:
        super().__init__(number, reason, str(url))


class StoreUnreachable(StoreError):
    """Nobody answers, or only with errors of the server's own; retrying has not helped."""

    def __init__(self, reason: str, url: object) -> None:
        super().__init__(reason, url, errno.EHOSTUNREACH)


@dataclass(frozen=True, slots=True)
class Listed:
    """An object: `path` below the store's URL, when it was written in seconds since the epoch, and its tag."""

    path: str
    size_bytes: int
    modified_s: float
    e_tag: str = ""


class DatasetStore(Protocol):
    """Objects below one URL, by relative path. Safe to use from any thread.

    Every method raises FileNotFoundError for an object that is not there, and StoreError (an OSError) for what else
    goes wrong.
    """

    @property
    def url(self) -> ObjectUrl:
        """Below which everything lies."""
        ...

    def list(self, folder: str = "", *, deep: bool = True) -> Iterator[Listed]:
        """The objects below `folder`; without `deep` only those directly in it. Costs a request a thousand."""
        ...

    def read(self, path: str) -> bytes:
        """All of an object."""
        ...

    def read_range(self, path: str, start: int, count: int) -> bytes:
        """`count` bytes from `start` on, fewer at the end of the object."""
        ...

    def head(self, path: str) -> Listed:
        """Size and time of an object."""
        ...

    def create(self, path: str, data: bytes) -> bool:
        """Store `data` unless there is such an object: False then, also when it is an earlier try of this very call
        whose answer was lost. Durable when it returns."""
        ...

    def put(self, path: str, data: bytes) -> None:
        """Store `data` in place of what is there."""
        ...

    def upload(
        self,
        path: str,
        pieces: Iterable[bytes | memoryview],
        *,
        temporary: str,
        check: Callable[[], None] = lambda: None,
    ) -> int | None:
        """`create` of an object of any size from a stream; large ones are sent in parts under the name `temporary`
        first. `check` is called after the last piece; when it raises there is no object. Its size, or None where the
        object was there."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects; those that are gone are none the less."""
        ...
