"""A tmpfs of a given size, mounted for a benchmark."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import NotHere

__all__ = ["mounted_tmpfs"]


@contextlib.contextmanager
def mounted_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A tmpfs of `size` on `folder`.

    Raises:
        NotHere: it cannot be mounted.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"size={size},mode=0700,uid={os.geteuid()}"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise NotHere(f"a tmpfs of {size} cannot be mounted on {folder}: {done.stderr.strip()}; run it as root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        for made in (folder, folder.parent):
            with contextlib.suppress(OSError):
                made.rmdir()
