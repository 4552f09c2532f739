"""A destination in an object store. Imported only where ``--dst`` is a URL."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time

from hs_formats.dataset import UNCLAIMED
from hs_formats.location import ObjectUrl
from hs_formats.objectstore.paths import RemotePaths
from hs_formats.objectstore.remote import open_store
from hs_formats.objectstore.store import DatasetStore
from hs_mover.destination import Destination

__all__ = ["RemoteDestination"]

_CHECK_S = 5.0
_CHECK_FOLDER = ".hs-check"


class RemoteDestination(Destination):
    """Datasets are prefixes below `url`. It has no `root`: nothing of it is a folder here.

    Raises:
        PreflightError: the store cannot be used as the environment has it.
    """

    local = False

    def __init__(self, url: ObjectUrl) -> None:
        self.url = url
        self.store: DatasetStore = open_store(url)
        self.failed = False  # something that was sent may be there though we were not told
        self._checked_at_s = float("-inf")
        self._lock = threading.Lock()

    @property
    def location(self) -> ObjectUrl:
        """The URL."""
        return self.url

    def check(self) -> None:
        """The store answers; asked every few seconds at most.

        Raises:
            OSError: it does not.
        """
        with self._lock:
            if time.monotonic() < self._checked_at_s + _CHECK_S:
                return
            self._checked_at_s = float("-inf")
            list(self.store.list(_CHECK_FOLDER, deep=False))
            self._checked_at_s = time.monotonic()

    def keeps_what_is_there(self) -> bool:
        """Whether the store refuses to make an object where there is one, tried with a small one.

        Some that speak the protocol leave the condition out of account and say that all went well (`rclone serve s3`).

        Raises:
            OSError: the store fails.
        """
        path = f"{_CHECK_FOLDER}/{secrets.token_hex(8)}"
        try:
            self.store.create(path, b"1")
            return not self.store.create(path, b"2")
        finally:
            with contextlib.suppress(OSError):  # a bucket may forbid it; the object is a byte
                self.store.delete([path])

    def dataset(self, name: str) -> RemotePaths:
        """Paths of a dataset below the destination."""
        return RemotePaths(self.url / name)

    def sweep(self, suffix: str) -> None:
        """Remove temporaries of parts of unclaimed runs.

        Raises:
            OSError: the store fails.
        """
        self.store.delete([entry.path for entry in self.store.list(UNCLAIMED) if entry.path.endswith(suffix)])

    def unclaimed_shown(self, run: str) -> str:
        """Where the parts of a run go that nobody registered."""
        return str(self.url / UNCLAIMED / run)
