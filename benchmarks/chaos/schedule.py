"""What is done to whom in a round, and when: drawn from a seed and the number of the round. No I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

__all__ = ["KILLS", "SERVER_KILLS", "Event", "Kind", "Round", "draw_round"]

Kind = Literal[
    "kill client",
    "kill mover",
    "kill server",
    "kill scheduler",
    "kill client and mover",
    "kill all",
    "stop client",
    "stop mover",
    "stop server",
    "terminate client",
    "terminate mover",
    "full scratch",
    "full destination",
]

KILLS: dict[Kind, int] = {
    "kill client": 1,
    "kill mover": 1,
    "kill server": 1,
    "kill scheduler": 1,
    "kill client and mover": 2,
    "kill all": 3,
}
"""Programs that an event kills with SIGKILL. A server is one, however many processes it has."""

SERVER_KILLS: tuple[Kind, ...] = ("kill server", "kill scheduler", "kill all")

_WEIGHTS: dict[Kind, float] = {
    "kill client": 34,
    "kill mover": 32,
    "kill server": 4.5,
    "kill scheduler": 2.5,
    "kill client and mover": 5,
    "kill all": 1.5,
    "stop client": 3,
    "stop mover": 4,
    "stop server": 3,
    "terminate client": 3,
    "terminate mover": 3,
    "full scratch": 3,
    "full destination": 3,
}
_LONGEST_HOLD_S: dict[Kind, float] = {
    "stop client": 3.0,
    "stop mover": 6.0,
    "stop server": 4.0,
    "full scratch": 3.0,
    "full destination": 4.0,
}
_SLOW_SYNC_S = (0.0, 0.0, 0.0, 0.02, 0.2)
_QUICK: tuple[Kind, ...] = (
    "kill client",
    "kill mover",
    "stop mover",
    "kill client and mover",
    "full scratch",
    "full destination",
    "kill mover",
    "terminate mover",
    "kill client",
)


@dataclass(frozen=True, slots=True)
class Event:
    """`kind` happens `delay_s` after `at_row` samples of the round are done; a hold lasts `hold_s`, else nobody is away
    for longer than that."""

    kind: Kind
    at_row: int
    delay_s: float
    hold_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """A prompts file of `rows` samples and what happens while it is run.

    Attributes:
        deaf: the movers of the round get no events of the file system.
        sync_s: each of their syncs takes so much longer, as on a slow disk.
    """

    number: int
    rows: int
    events: tuple[Event, ...]
    deaf: bool
    sync_s: float


def draw_round(seed: int, number: int, *, quick: bool = False) -> Round:
    """The round `number` (from 0) of `seed`. The short form kills no server, and each of its events is given."""
    draw = random.Random(f"{seed}:{number}")
    rows = 80 if quick else draw.choice([120, 240, 400])
    count = len(_QUICK) if quick else rows // 20
    kinds = list(_QUICK) if quick else draw.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count)
    at_rows = sorted(draw.randrange(rows - rows // 10) for _ in range(count))
    events = tuple(
        Event(kind, at_row, draw.random() * 0.3, draw.uniform(0.1, _LONGEST_HOLD_S.get(kind, 1.0)))
        for kind, at_row in zip(kinds, at_rows, strict=True)
    )
    return Round(number, rows, events, draw.random() < 0.25, draw.choice(_SLOW_SYNC_S))
