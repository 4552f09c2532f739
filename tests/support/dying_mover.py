"""Runs `hs-mover` and kills it, with SIGKILL, just before the k-th system call that changes something durable.

Usage: python dying_mover.py K ARGUMENTS OF HS-MOVER. Exits 0 when the mover ended before its k-th such call.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from hs_mover import lane
from hs_mover.cli import main

_COUNTED = ("fdatasync", "fsync", "link", "mkdir", "rename", "unlink", "writev")


def _arm(last: int) -> None:
    lock, calls = threading.Lock(), 0

    def count() -> None:
        nonlocal calls
        with lock:
            calls += 1
            if calls == last:
                os.kill(os.getpid(), signal.SIGKILL)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            count()
            return function(*args, **kwargs)

        return counted

    for name in _COUNTED:
        setattr(os, name, wrap(getattr(os, name)))
    plain_open = os.open

    def counted_open(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & os.O_CREAT:
            count()
        return plain_open(path, flags, *args, **kwargs)

    os.open = counted_open


if __name__ == "__main__":
    lane.SETTLE_S = 0.05
    _arm(int(sys.argv[1]))
    sys.argv = ["hs-mover", *sys.argv[2:]]
    main()
