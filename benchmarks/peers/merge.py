"""Results of several runs as one: each has measured some contestants, beside the baseline or not. Pure functions.

A run has contestants by name, each with ``cells``: tokens/s of its blocks by cell.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.accrue import Run, put_together
from benchmarks.peers.contestants import BASELINE
from benchmarks.sampling import paired_ratio, ratio_of_medians

__all__ = ["merge", "rates", "ratios"]


def merge(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest record with the runs of all of them, oldest first, and the ratios over these."""
    return put_together(records, ratios)


def rates(runs: Sequence[Run], name: str, cell: str) -> list[float]:
    """All samples of a contestant in a cell, of all runs."""
    return [rate for run in runs for rate in run.get(name, {}).get("cells", {}).get(cell, [])]


def ratios(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """By contestant and cell: its rate as a part of the baseline's.

    Where runs have measured both, each sample is divided by the median of the baseline of the same run; else, with
    ``other_run``, medians over all runs are compared. A loop has one prompt in flight: it is held against the
    baseline's best cell of that length, which a user could have had instead, named in ``against``.
    """
    found: dict[str, dict[str, Any]] = {}
    names = dict.fromkeys(name for run in runs for name in run if name != BASELINE)
    for name in names:
        for cell in dict.fromkeys(cell for run in runs for cell in run.get(name, {}).get("cells", {})):
            loop = any(run.get(name, {}).get("kind") == "loop" for run in runs)
            against = _best(runs, cell) if loop else cell
            mine: list[float] = []
            base: list[float] = []
            for run in runs:
                floor = run.get(BASELINE, {}).get("cells", {}).get(against)
                own = run.get(name, {}).get("cells", {}).get(cell, [])
                if floor:
                    mine += own
                    base += [statistics.median(floor)] * len(own)
            if mine:
                ratio, other = paired_ratio(mine, base), False
            elif rates(runs, BASELINE, against) and rates(runs, name, cell):
                ratio, other = ratio_of_medians(rates(runs, name, cell), rates(runs, BASELINE, against)), True
            else:
                continue
            found.setdefault(name, {})[cell] = {**asdict(ratio), "against": against, "other_run": other}
    return found


def _best(runs: Sequence[Run], cell: str) -> str:
    """The baseline's fastest cell with prompts as long as those of `cell`."""
    tokens = cell.partition("x")[0]
    cells = {one for run in runs for one in run.get(BASELINE, {}).get("cells", {}) if one.partition("x")[0] == tokens}
    return max(sorted(cells), key=lambda one: statistics.median(rates(runs, BASELINE, one)), default=cell)
