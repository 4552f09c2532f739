"""A memory cgroup of a given limit, of whichever version is mounted, for tests of what a limit does."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["memory_group"]


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """The folder of a new cgroup: write a pid to its ``cgroup.procs``. The test is skipped where none can be made."""
    for parent, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
        (Path("/sys/fs/cgroup/unified"), "memory.max"),
    ):
        folder = parent / f"hs-test-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
        except OSError:  # no memory controller there
            folder.rmdir()
            continue
        break
    else:
        pytest.skip("no memory cgroup can be made here: what limits do to admission is NOT tested")
    try:
        yield folder
    finally:
        for _ in range(100):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)  # its last process is just ending
