"""Results of several runs as one, for cases that are measured a few minutes at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["Run", "put_together"]

Run = Mapping[str, Any]
"""What one run has measured, by name."""


def put_together(
    records: Sequence[Mapping[str, Any]], ratios: Callable[[Sequence[Run]], dict[str, Any]]
) -> dict[str, Any]:
    """The newest record with the ``runs`` of all of them, oldest first, and the `ratios` over these.

    What is ``absent`` is so for one of them; of what was ``left`` that stays which no run has measured.
    """
    runs = [run for record in records for run in record["runs"]]
    absent = {name: why for record in records for name, why in record["absent"].items()}
    seen = {name for run in runs for name in run}
    left = sorted({name for record in records for name in record["left"]} - seen)
    return {**records[-1], "runs": runs, "absent": absent, "left": left, "ratios": ratios(runs)}
