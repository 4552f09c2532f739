"""What the kernel says about a process."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["anonymous_mib", "cpu_s"]


def anonymous_mib(pid: int) -> float:
    """Its anonymous memory that is resident; 0 once it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def cpu_s(pid: int) -> float:
    """Its processor time so far, user and system, in seconds.

    Raises:
        OSError: there is no such process.
    """
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)
