"""Which clients live: each keeps a lock on its own record in the control folder, which ends with its process."""

from __future__ import annotations

import contextlib
import fcntl
import os

from hs_formats.control import ControlFolder

__all__ = ["hold_claim", "live_runs"]


def hold_claim(control: ControlFolder, run: str) -> int:
    """Lock the record of `run`, which exists; returns the descriptor that holds the lock.

    Raises:
        OSError: the record is gone.
    """
    fd = os.open(control.clients / f"{run}.json", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
