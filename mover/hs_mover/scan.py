"""One look at scratch: the names in it, sorted into parts, temporaries of launches, and what is not ours."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from hs_formats.control import CONTROL_FOLDER
from hs_formats.names import CANARY_RUN, PartName, parse_temporary

__all__ = ["Listing", "list_scratch"]


@dataclass(frozen=True, slots=True)
class Listing:
    """Names in scratch. `parts` leaves out those given as known; `present` has all part names."""

    parts: dict[str, PartName] = field(default_factory=dict)
    present: set[str] = field(default_factory=set)
    temporaries: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)


def list_scratch(folder: Path, *, known: Collection[str], known_foreign: Collection[str]) -> Listing:
    """Names in `folder`, without a look at the files. The canary's files are passed over.

    Args:
        folder: scratch.
        known: part names that need not be parsed again.
        known_foreign: other names that need not be reported again.

    Raises:
        OSError: the folder cannot be read.
    """
    found = Listing()
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name in known:
                found.present.add(name)
                continue
            if name == CONTROL_FOLDER:
                continue
            part = PartName.try_parse(name)
            if part is not None:
                if part.rid.run != CANARY_RUN:
                    found.parts[name] = part
                    found.present.add(name)
                continue
            temporary = parse_temporary(name)
            if temporary is not None:
                if temporary[0].rid.run != CANARY_RUN:
                    found.temporaries[name] = temporary[1]
            elif name not in known_foreign:
                found.foreign.add(name)
    return found
