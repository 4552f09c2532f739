"""What earlier runs left in a scratch: reported at launch, never deleted."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path

from hs_formats.control import ControlFolder, now_s
from hs_formats.errors import FormatError
from hs_formats.names import CANARY_RUN, PartName, parse_temporary

__all__ = ["leftover_lines"]


def leftover_lines(scratch: Path) -> list[str]:
    """Parts and temporaries that lie in `scratch` before a launch, and who will see to them; empty where none do.

    Raises:
        OSError: scratch cannot be read.
    """
    control = ControlFolder(scratch)
    live = {marker.nonce for marker in control.live_markers()}
    parts: Counter[str] = Counter()
    size = cut = 0
    with os.scandir(scratch) as entries:
        for entry in entries:
            name = PartName.try_parse(entry.name)
            temporary = parse_temporary(entry.name)
            if temporary is not None and temporary[1] not in live:
                cut += 1
            if name is not None and name.rid.run != CANARY_RUN:
                parts[name.rid.run] += 1
                with contextlib.suppress(FileNotFoundError):  # a mover has just taken it
                    size += entry.stat(follow_symlinks=False).st_size
    if not parts and not cut:
        return []
    lines: list[str] = []
    if parts:
        runs = ", ".join(sorted(parts)[:5]) + (", …" if len(parts) > 5 else "")
        lines.append(f"leftovers {parts.total()} parts of earlier runs ({runs}), {size:,} bytes: kept, {_who(control)}")
    if cut:
        lines.append(f"leftovers {cut} unfinished files of servers that died: the mover removes them")
    return lines


def _who(control: ControlFolder) -> str:
    try:
        mover = control.read_mover()
    except (FormatError, OSError):
        mover = None
    if mover is not None and mover.alive(now_s()):
        return f"the mover stores them in {mover.dst}"
    return f"start `hs-mover --src {control.scratch} --dst FOLDER` to have them stored"
