"""A dataset in an object store, to everything that knows `DatasetPaths`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec

from hs_formats.dataset import DataFile, DatasetInfo, DatasetPaths
from hs_formats.location import ObjectUrl
from hs_formats.objectstore.blocks import BlockCache, RemoteObject
from hs_formats.objectstore.mirror import BOOKS, BooksMirror
from hs_formats.objectstore.remote import open_store
from hs_formats.objectstore.segments import SegmentLog
from hs_formats.objectstore.settings import store_settings
from hs_formats.objectstore.store import DatasetStore

__all__ = ["CACHE", "RemotePaths", "mirror_folder"]

CACHE = "HS_CACHE_DIR"
"""Where copies of books are kept."""


def mirror_folder(url: ObjectUrl) -> Path:
    """The folder of this user for the books of the dataset at `url`; another one for the same name elsewhere."""
    root = os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hs-extract"
    known_by = f"{store_settings(url.scheme).endpoint} {url}"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", url.name)[:64]
    return Path(root) / "books" / f"{name}-{hashlib.sha256(known_by.encode()).hexdigest()[:16]}"


class RemotePaths(DatasetPaths):
    """`root` is the copy of the books; `refresh` brings it up to date, once it was called.

    Raises:
        PreflightError: the store cannot be used as the environment has it.
    """

    local = False

    def __init__(self, url: ObjectUrl, store: DatasetStore | None = None, folder: Path | None = None) -> None:
        super().__init__(mirror_folder(url) if folder is None else folder)
        self.url = url
        self.store = open_store(url) if store is None else store
        self._mirror = BooksMirror(self.store, self.root)
        self._cache = BlockCache(self.store)

    def __reduce__(self) -> tuple[type[RemotePaths], tuple[ObjectUrl, DatasetStore, Path]]:
        return RemotePaths, (self.url, self.store, self.root)

    @property
    def location(self) -> ObjectUrl:
        """The URL."""
        return self.url

    def refresh(self, *books: str) -> None:
        """See `DatasetPaths`."""
        self._mirror.refresh(books or BOOKS)

    def stored(self, path: str) -> RemoteObject:
        """See `DatasetPaths`."""
        self.stored_file(path)
        return RemoteObject(self._cache, self.store, path)

    def has_file(self, path: str) -> bool:
        """See `DatasetPaths`."""
        try:
            self.store.head(path)
        except FileNotFoundError:
            return False
        return True

    def data_files(self, run: str = "") -> Iterator[DataFile]:
        """See `DatasetPaths`."""
        entries = sorted(self.store.list(f"data/{run}".rstrip("/")), key=lambda entry: entry.path)
        return (DataFile(entry.path, entry.size_bytes) for entry in entries)

    def remove_temporaries(self, run: str, suffix: str) -> None:
        """See `DatasetPaths`."""
        self.store.delete([file.path for file in self.data_files(run) if file.path.endswith(suffix)])

    def modified_s(self, path: str) -> float:
        """See `DatasetPaths`."""
        return self.store.head(path).modified_s

    def replace_verified(self, data: bytes) -> None:
        """See `DatasetPaths`."""
        self.store.put("verified.json", data)
        self.refresh("ledger")

    def create(self) -> None:
        """Nothing: an object store has no folders."""

    def write_info(self, info: DatasetInfo) -> bool:
        """See `DatasetPaths`."""
        made = self.store.create("dataset.json", info_bytes(info))
        self.refresh()
        return made

    def open_log(self, book: str, name: str) -> SegmentLog:
        """The end of the log `name` of `book`, such as ``ledger`` and a run, for its only writer.

        Raises:
            OSError: the store cannot be read.
        """
        return SegmentLog(self.store, f"{book}/{name}")

    def publish(self, path: Path) -> None:
        """See `DatasetPaths`."""
        self.store.put(str(path.relative_to(self.root)), path.read_bytes())


def info_bytes(info: DatasetInfo) -> bytes:
    """``dataset.json``."""
    return msgspec.json.format(msgspec.json.encode(asdict(info)), indent=1) + b"\n"
