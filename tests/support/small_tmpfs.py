"""A real tmpfs of a given size, for tests of what happens when scratch is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

__all__ = ["fill", "small_tmpfs"]


@contextlib.contextmanager
def small_tmpfs(folder: Path, *, options: str) -> Iterator[Path]:
    """`folder`, made if need be, with a tmpfs mounted on it (needs root); `options` such as ``size=1m``."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,{options}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Use up every free byte below `folder`; returns the file to delete."""
    path = folder / "ballast"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, b"\1" * 4096)
    os.close(fd)
    assert os.statvfs(folder).f_bavail == 0
    return path
