"""Runs `hs-mover` with the odds of a bad day: no events of the file system, or syncs that take longer.

Usage: python odd_mover.py DEAF SECONDS ARGUMENTS OF HS-MOVER, where DEAF is 0 or 1.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hs_mover import watch
from hs_mover.cli import main

__all__: list[str] = []


def _slowed(sync: Callable[[Any], None], seconds: float) -> Callable[[Any], None]:
    def slow(descriptor: Any) -> None:
        time.sleep(seconds)
        sync(descriptor)

    return slow


def _not_told(handler: object, event: object) -> None:
    """In the place of the handler of events."""


if __name__ == "__main__":
    if sys.argv[1] == "1":
        watch._Handler.dispatch = _not_told  # type: ignore[method-assign, assignment]  # noqa: SLF001
    if seconds := float(sys.argv[2]):
        for name in ("fsync", "fdatasync"):
            setattr(os, name, _slowed(getattr(os, name), seconds))
    sys.argv = ["hs-mover", *sys.argv[3:]]
    main()
