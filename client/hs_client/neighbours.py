"""Other clients at work on the same dataset: harmless as long as each has rows of its own."""

from __future__ import annotations

import contextlib
from math import gcd

from hs_client.claim import live_runs
from hs_client.settings import parse_shard
from hs_formats.control import ControlFolder, RunState
from hs_formats.errors import UsageError

__all__ = ["LEASED", "overlapping_runs", "shards_overlap"]

LEASED = "leased"
"""In place of a shard: the run has the rows that it is leased, and no other one that is leased has them."""


def shards_overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Some number is in shard i of n and in shard j of m."""
    (i, n), (j, m) = one, other
    return (i - j) % gcd(n, m) == 0


def overlapping_runs(control: ControlFolder, dataset: str, shard: str) -> list[RunState]:
    """Living runs on this scratch that may send rows which shard `shard` of `dataset` (``i/n``, `LEASED`) sends, too.

    Raises:
        OSError: the control folder is gone.
    """
    found: list[RunState] = []
    for run in sorted(live_runs(control)):
        state = control.read_run(run)
        if state is None or state.dataset != dataset:
            continue
        if shards_overlap(_shard(shard), _shard(state.shard)) and not shard == state.shard == LEASED:
            found.append(state)
    return found


def _shard(text: str) -> tuple[int, int]:
    with contextlib.suppress(UsageError):
        return parse_shard(text)
    return 0, 1
