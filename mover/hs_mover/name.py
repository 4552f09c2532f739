"""The name a mover writes under: in its manifests' file names and its temporaries. No two that live may share one.

Host and scratch folder make it, the same after every restart. Two containers can have both in common, so the name is
locked in the destination for as long as the mover lives, and the second one takes the next free number.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

from hs_formats.errors import PreflightError
from hs_mover.config import mover_id
from hs_mover.destination import Destination

__all__ = ["LOCKS_FOLDER", "MoverName", "NameTaken"]

_log = logging.getLogger(__name__)

LOCKS_FOLDER = ".hs-movers"
_MOST = 64
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class NameTaken(PreflightError):
    """another mover took the name {name} while {dst} was away: start this one again"""


class MoverName:
    """`text` is fixed once `claim` was called; `ensure` renews the lock after the destination was away."""

    def __init__(self, src: Path, destination: Destination) -> None:
        self.text = mover_id(src)
        self._destination = destination
        self._fd = -1
        self._lockable = destination.local  # in an object store each life of a mover writes a log of its own

    def claim(self) -> None:
        """Take the first free name; the first of all where the destination cannot lock, or cannot be written now."""
        if not self._lockable:
            return
        first = self.text
        for number in range(1, _MOST + 1):
            self.text = first if number == 1 else f"{first}-{number}"
            try:
                if self._take():
                    break
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    _log.warning("%s takes no locks: movers of one host name and --src need a --dst each", self._folder)
                self.text = first
                return
        if self.text != first:
            _log.warning("another mover of this host name and --src writes here; this one is %s", self.text)

    def ensure(self) -> None:
        """Hold the lock again.

        Raises:
            NameTaken: another mover was faster.
            OSError: the destination fails.
        """
        if not self._lockable:
            return
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._path), os.fstat(self._fd)):
                    return
            self.release()
        if not self._take():
            raise NameTaken(name=self.text, dst=self._destination.location)

    def release(self) -> None:
        """Let the lock go, and with it the destination's file system."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _folder(self) -> Path:
        return self._destination.root / LOCKS_FOLDER

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.text}.lock"

    def _take(self) -> bool:
        self._destination.make(self._folder)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError as error:
            os.close(fd)
            if error.errno in _NO_LOCKS:
                self._lockable = False
            raise
        self._fd = fd
        return True
