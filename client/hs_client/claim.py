"""Which clients live: each keeps a lock on its own record in the control folder, which ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from hs_formats.control import ControlFolder

__all__ = ["hold_claim", "live_runs", "lock_holder"]

_PATIENCE_S = 5.0
_PAUSE_S = 0.01
_LOCKS = Path("/proc/locks")


def hold_claim(control: ControlFolder, run: str) -> int:
    """Lock the record of `run`, which exists; returns the descriptor that holds the lock.

    Raises:
        OSError: the record is gone, or stays locked.
    """
    fd = os.open(control.clients / f"{run}.json", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    end_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # `live_runs` of another process looks at it, for a moment
            if time.monotonic() >= end_s:
                os.close(fd)
                raise
            time.sleep(_PAUSE_S)
        else:
            return fd


def live_runs(control: ControlFolder) -> set[str]:
    """Runs whose client is alive, in whatever container it lives."""
    found: set[str] = set()
    for path in control.clients.glob("*.json"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.add(path.stem)
            finally:
                os.close(fd)
    return found


def lock_holder(path: Path) -> int | None:
    """The process that holds a lock (flock) on `path`; None where nobody does, or the kernel does not say who."""
    try:
        inode = path.stat().st_ino
        lines = _LOCKS.read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    for line in lines:  # 1: FLOCK  ADVISORY  WRITE 4711 00:1a:12345 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            return int(words[4]) if words[4].isdigit() and words[4] != "0" else None
    return None
