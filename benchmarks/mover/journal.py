"""A disk of the common kind for the syncs: ext4 with a journal, on a loop device whose file lies on the disk here."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.machine import NotHere

__all__ = ["file_system", "mounted_journal", "sync_s"]

_SYNCS = 50


def file_system(folder: Path) -> str:
    """Type of the file system that `folder` is on, with a word on the journal where it is ext4."""
    done = subprocess.run(
        ["findmnt", "-n", "-o", "FSTYPE,MAJ:MIN", "--target", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return "unknown"
    kind, numbers = done.stdout.split()
    if kind != "ext4":
        return kind
    name = Path(f"/sys/dev/block/{numbers}").resolve().name
    return "ext4 with a journal" if any(Path("/proc/fs/jbd2").glob(f"{name}-*")) else "ext4 without a journal"


@contextlib.contextmanager
def mounted_journal(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Such a file system of `size_bytes`; it is made in `folder` and removed again.

    Raises:
        NotHere: it cannot be made or mounted.
    """
    image, mount = folder / "journal.img", folder / "journal"
    mount.mkdir()
    with image.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    try:
        for command in (
            ["mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", str(image)],
            ["mount", "-o", "loop", str(image), str(mount)],
        ):
            if shutil.which(command[0]) is None:
                raise NotHere(f"{command[0]} is not installed: the table of a disk with a journal needs it")
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise NotHere(f"{' '.join(command)}: {done.stderr.strip()}; run it as root")
        try:
            yield mount
        finally:
            subprocess.run(["umount", str(mount)], check=False)
    finally:
        image.unlink()
        with contextlib.suppress(OSError):
            mount.rmdir()


def sync_s(folder: Path) -> float:
    """Median time of an fsync of a small new file in `folder`, in seconds."""
    took: list[float] = []
    path = folder / "sync"
    for _ in range(_SYNCS):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.write(fd, b"x" * 4096)
        began = time.monotonic()
        os.fsync(fd)
        took.append(time.monotonic() - began)
        os.close(fd)
        path.unlink()
    return statistics.median(took)
