"""Durable files: temporary name → write → fsync → rename → fsync of the folder, in one place.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

__all__ = [
    "fsync_folder",
    "link_durable",
    "make_folders",
    "replace_file",
    "write_all",
    "write_durable",
]

_IOV_MAX = 1024


def write_all(fd: int, pieces: Iterable[bytes | bytearray | memoryview]) -> int:
    """Write every byte of `pieces` at the file's position, vectored; short writes are continued.

    Returns:
        The bytes written.

    Raises:
        OSError: as `os.writev`; how much was written before is then unknown.
    """
    views = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
    total = 0
    first = 0
    while first < len(views):
        done = os.writev(fd, views[first : first + _IOV_MAX])
        total += done
        while done:
            size = views[first].nbytes
            if done >= size:
                done -= size
                first += 1
            else:
                views[first] = views[first][done:]
                done = 0
    return total


def fsync_folder(folder: Path) -> None:
    """Make the entries of `folder` durable.

    Raises:
        OSError: the folder is gone or its file system fails.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(folder: Path, *, mode: int = 0o777) -> None:
    """Create `folder` and its parents, each made durable in its own parent.

    Raises:
        OSError: as `os.mkdir`, also when something else than a folder has the name.
    """
    missing: list[Path] = []
    at = folder
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for path in reversed(missing):
        try:
            path.mkdir(mode=mode)
        except FileExistsError:
            if not path.is_dir():
                raise
        fsync_folder(path.parent)


def write_durable(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` with `data`; after the call it is durable, at every moment it is the old file or the new one.

    Raises:
        OSError: nothing was replaced and the temporary is removed; or, where the folder's fsync failed, the new file
            is in place but may not outlive a power cut.
    """
    _replace(path, data, mode=mode, durable=True)


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """`write_durable` without fsync, for files in tmpfs."""
    _replace(path, data, mode=mode, durable=False)


def _temporary_beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")


def _write_new(path: Path, data: bytes, *, mode: int, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    try:
        write_all(fd, [data])
        if durable:
            os.fsync(fd)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _replace(path: Path, data: bytes, *, mode: int, durable: bool) -> None:
    temporary = _temporary_beside(path)
    _write_new(temporary, data, mode=mode, durable=durable)
    try:
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_folder(path.parent)


def link_durable(path: Path, data: bytes, *, mode: int = 0o644) -> bool:
    """Create `path` with `data` if nobody else has: True when this call made it, False when it was there.

    Raises:
        OSError: neither happened; no temporary is left.
    """
    temporary = _temporary_beside(path)
    _write_new(temporary, data, mode=mode, durable=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)
    return True
