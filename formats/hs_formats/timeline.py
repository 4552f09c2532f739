"""The timeline of a run, ``timeline/<run>.jsonl``: how fast it went, how full scratch was and what it waited for.

For people alone: nothing depends on it, and it may be missing. Counters only grow, so a lost line loses no count.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from hs_formats.jsonl import TailReader

__all__ = ["TimelinePoint", "interval_s", "read_timeline"]

_MIN_S = 2.0
_MAX_S = 60.0
_SHARE = 1 / 360


class TimelinePoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it stood.

    Attributes:
        at: time of day, UTC.
        run_s: seconds since the run began to send.
        done: samples; adopted ones too. Like `failed`, `rejected`, `retried`, `sent` (requests), `answered`, `tokens`,
            `raw_bytes` and `stored_bytes` (of done samples) since the run's start.
        in_flight: requests without an answer.
        to_store: whole records that wait for a mover.
        used_bytes: of all scratch folders of the run, as their movers last said; as `limit_bytes`.
        p50_s: of the answers since the line before, as `p95_s`; 0 where there were none.
        waited_s: seconds since the start in which the next request waited, by party: ``tokeniser``, ``server``,
            ``scratch``, ``mover``.
        exit_code: in the last line of a run that came to its end; else -1.
        error: why it ended, if it failed.
    """

    at: str
    run_s: float
    done: int = 0
    failed: int = 0
    rejected: int = 0
    retried: int = 0
    sent: int = 0
    answered: int = 0
    tokens: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0
    in_flight: int = 0
    to_store: int = 0
    used_bytes: int = 0
    limit_bytes: int = 0
    p50_s: float = 0.0
    p95_s: float = 0.0
    waited_s: dict[str, float] = {}
    exit_code: int = -1
    error: str = ""


def interval_s(run_s: float) -> float:
    """Seconds until the next line of a run that has lasted for `run_s`: short runs finely, long ones in few bytes.

    Some 2,700 lines in the first day, then one a minute.
    """
    return min(_MAX_S, max(_MIN_S, run_s * _SHARE))


def read_timeline(path: Path) -> list[TimelinePoint]:
    """All whole lines of a timeline, in order; none where there is no such file.

    Raises:
        OSError: the file cannot be read.
    """
    tail: TailReader[TimelinePoint] = TailReader(path, TimelinePoint)
    return tail.poll()
