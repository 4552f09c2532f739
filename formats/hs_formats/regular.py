"""Opening files that somebody else may have put there: regular files only.

A dataset may come from anybody. A named pipe under the name of one of our files would stop whoever opens it, for good
and without a word; a device may give bytes without end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

__all__ = ["open_regular", "read_regular", "regular_fd"]


def regular_fd(path: Path, flags: int = os.O_RDONLY, *, mode: int = 0o644) -> int:
    """A descriptor of the regular file at `path`; opening it waits for nobody.

    Args:
        path: of the file; links are followed unless `flags` have O_NOFOLLOW.
        flags: as `os.open`; O_CLOEXEC is added.
        mode: of a file that is made, less the umask.

    Raises:
        OSError: as `os.open`; EINVAL where something else than a regular file is there.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


def open_regular(path: Path, *, buffering: int = -1) -> IO[bytes]:
    """`path` for reading, as ``open(path, "rb")``.

    Raises:
        OSError: as `regular_fd`.
    """
    return os.fdopen(regular_fd(path), "rb", buffering)


def read_regular(path: Path) -> bytes:
    """The whole content of `path`.

    Raises:
        OSError: as `regular_fd`.
    """
    with open_regular(path, buffering=0) as file:
        return file.read()
