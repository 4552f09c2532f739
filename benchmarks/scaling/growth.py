"""With what power of the size a cost grows, from costs at several sizes. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LINEAR", "Growth", "growths", "power"]

LINEAR = 1.2
"""What is called linear: sorting and caches that no longer hold everything take a little more."""

_SMALL_S = 0.05
_SMALL_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Growth:
    """Powers of the size with which time and memory grow; `memory` is None where it was not looked at."""

    time: float
    memory: float | None
    allowed: float = LINEAR


def power(sizes: Sequence[float], costs: Sequence[float], *, small: float) -> float:
    """The power p of cost ~ size^p between the last two sizes whose costs are above `small`; 0.0 where none are.

    Below `small` a cost is noise, or what the work costs once. Where only the last is above it, it is held against the
    one before as if that had been `small`: p is then no less than it was.
    """
    points = list(zip(sizes, costs, strict=True))
    if len(points) < 2 or points[-1][1] <= small:
        return 0.0
    (size, cost), (last_size, last_cost) = points[-2:]
    return math.log(last_cost / max(cost, small)) / math.log(last_size / size)


def growths(body: Mapping[str, Any]) -> dict[str, Growth]:
    """Growth of each thing that a result of the case has measured.

    Of parts, what a mover costs beyond its start, by their number; of clients, what a grant costs, by theirs.
    """
    found: dict[str, Growth] = {}
    for name, rows in body["rows"].items():
        sizes = [row["rows"] for row in rows]
        found[name] = Growth(
            power(sizes, [row["cpu_s"] for row in rows], small=_SMALL_S),
            power(sizes, [row["peak_bytes"] for row in rows], small=_SMALL_BYTES),
        )
    start_s = body["parts"]["start"]["cpu_s"]
    backlog = body["parts"]["backlog"]
    moved_s = [row["cpu_s"] - start_s for row in backlog]
    found["parts that wait"] = Growth(power([row["parts"] for row in backlog], moved_s, small=_SMALL_S), None)
    clients = body["clients"]
    grants_s = [row["cpu_s"] / row["grants"] for row in clients]
    found["clients, time of a grant"] = Growth(power([row["clients"] for row in clients], grants_s, small=1e-6), None)
    return found
