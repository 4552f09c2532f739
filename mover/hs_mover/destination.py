"""The destination folder: is it still the one we were given, and which errors are its fault."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from hs_formats.dataset import UNCLAIMED, DatasetPaths
from hs_formats.durable import make_folders
from hs_formats.location import Location

__all__ = ["Destination", "explain", "mount_point"]

_REASONS = {
    errno.ENOSPC: "destination full: free space or inodes on {dst}",
    errno.EDQUOT: "destination over quota: raise the quota or free space on {dst}",
    errno.EIO: "destination fails (input/output error): check the disk under {dst}",
    errno.EROFS: "destination is read-only: remount {dst}",
    errno.ENOENT: "destination is gone: bring {dst} back",
    errno.ENOTDIR: "destination is gone: bring {dst} back",
    errno.ESTALE: "destination is gone (stale handle): mount {dst} again",
    errno.ENOTCONN: "destination is gone (not connected): mount {dst} again",
    errno.ENODEV: "destination is gone (no device): mount {dst} again",
    errno.EACCES: "destination is not writable: check owner and mode of {dst}",
    errno.EPERM: "destination is not writable: check owner and mode of {dst}",
}


def explain(error: OSError, dst: Location) -> str:
    """One line for a failure on the destination's side: what, the remedy, and the system's own words."""
    reasons = _REASONS if isinstance(dst, Path) else _STORE_REASONS
    text = reasons.get(error.errno or 0, "destination fails: check {dst}").format(dst=dst)
    where = f": {error.filename!r}" if error.filename is not None else ""
    return f"{text} ({error.strerror or error}{where})"


def mount_point(path: Path) -> Path:
    """The nearest ancestor of `path`, or itself, on which a file system is mounted.

    Raises:
        OSError: `path` is not there.
    """
    at = path.resolve(strict=True)
    while not at.is_mount():
        at = at.parent
    return at


_STORE_REASONS = {
    errno.EHOSTUNREACH: "destination does not answer: check the network and the endpoint of {dst}",
    errno.EACCES: "destination denies access: check the credentials and the bucket policy of {dst}",
    errno.EIO: "destination fails: check the bucket of {dst}",
}


class Destination:
    """`root` must exist. A destination that vanishes is never made anew, and a folder that lies under a mount point
    whose file system is gone is not taken for it.

    Raises:
        OSError: the folder cannot be looked at.
    """

    local = True

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mount = mount_point(root)
        self._making = threading.Lock()

    def check(self) -> None:
        """Raises:
        OSError: the folder is not there, or its file system is not mounted.
        """
        if mount_point(self.root) != self._mount:
            raise FileNotFoundError(errno.ENOENT, "the file system is not mounted", str(self._mount))
        if not self.root.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.root))

    @property
    def location(self) -> Location:
        """Where it is, as users know it."""
        return self.root

    def dataset(self, name: str) -> DatasetPaths:
        """Paths of a dataset below the destination."""
        return DatasetPaths(self.root / name)

    def unclaimed(self, run: str) -> Path:
        """Folder for the parts of a run that nobody registered."""
        return self.root / UNCLAIMED / run

    def unclaimed_shown(self, run: str) -> str:
        """The same as text."""
        return str(self.unclaimed(run))

    def sweep(self, suffix: str) -> None:
        """Remove what ends in `suffix` of unclaimed runs in an object store; folders `hs_mover.recover` sees to."""

    def make(self, folder: Path) -> None:
        """Make a folder inside the destination, durably.

        Raises:
            OSError: it cannot be made, or the destination is gone.
        """
        there = folder.is_dir()
        with self._making:  # a folder that another thread has just made is not durable yet
            if not there:
                self.check()
                make_folders(folder)
