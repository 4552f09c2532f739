"""What the seconds of one run or of several say. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.accrue import Run, put_together
from benchmarks.onpolicy.arms import BASELINE
from benchmarks.sampling import Ratio, paired_ratio, ratio_of_medians

__all__ = ["RATIOS", "merge", "per_thousand", "ratios", "seconds_of"]

RATIOS = {
    "armed": "answers/s with capture armed and nothing captured ÷ without capture: what the capture costs decoding",
    "one": "answers/s of `hs-client run --generate` ÷ without capture; the second prefills run meanwhile",
    "left": "what the second prefills leave, were they all that it costs",
    "whole": "generating alone, then prefilling alone, nothing kept ÷ the whole run, which keeps everything",
    "second": "prefilling question and answer ÷ generating the answer: the price of the second prefill",
    "two": "time of the way with two servers ÷ with one, starts left out",
    "eager": "answers/s with graphs off ÷ on, without capture",
}


def merge(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest record with the runs of all of them, oldest first, and the ratios over these."""
    return put_together(records, ratios)


def seconds_of(runs: Sequence[Run], arm: str, what: str) -> list[float]:
    """All blocks of an arm, of all runs."""
    return [value for run in runs for value in run.get(arm, {}).get("seconds", {}).get(what, [])]


def ratios(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """`RATIOS`, as far as they were measured; each run's seconds are taken in units of its own baseline."""
    generate = _relative(runs, BASELINE, "generate")
    armed, prefill = _relative(runs, "one", "generate"), _relative(runs, "one", "prefill")
    answers, one = _relative(runs, "one", "answers"), _relative(runs, "one", "run")
    two, eager = _relative(runs, "two", "run"), _relative(runs, "eager", "generate")
    found: dict[str, Ratio] = {}
    if armed:
        found["armed"] = ratio_of_medians(generate, armed)
    if answers and prefill:
        found["one"] = ratio_of_medians(generate, answers)
        found["left"] = paired_ratio([1.0] * len(prefill), [1.0 + seconds for seconds in prefill])
        found["whole"] = ratio_of_medians([1.0 + seconds for seconds in prefill], one)
        found["second"] = ratio_of_medians(prefill, generate)
    if two and one:
        found["two"] = ratio_of_medians([1.0 + seconds for seconds in two], one)
    if eager:
        found["eager"] = ratio_of_medians(generate, eager)
    return {name: asdict(ratio) for name, ratio in found.items()}


def _relative(runs: Sequence[Run], arm: str, what: str) -> list[float]:
    return [
        seconds / statistics.median(seconds_of([run], BASELINE, "generate"))
        for run in runs
        for seconds in seconds_of([run], arm, what)
    ]


def per_thousand(runs: Sequence[Run], samples: int) -> dict[str, dict[str, float]]:
    """Seconds for 1,000 samples from prompts to stored states, by way: ``one`` and ``two`` servers.

    ``starts`` are those of the servers, once; ``generate`` and ``capture`` the work, together where one server does
    both; ``all`` the sum.
    """
    scale = 1000 / samples
    found: dict[str, dict[str, float]] = {}
    if one := seconds_of(runs, "one", "run"):
        found["one"] = {"starts": _start_s(runs, "one"), "generate": 0.0, "capture": statistics.median(one) * scale}
    if two := seconds_of(runs, "two", "run"):
        found["two"] = {
            "starts": _start_s(runs, BASELINE) + _start_s(runs, "two"),
            "generate": statistics.median(seconds_of(runs, BASELINE, "generate")) * scale,
            "capture": statistics.median(two) * scale,
        }
    return {way: {**seconds, "all": sum(seconds.values())} for way, seconds in found.items()}


def _start_s(runs: Sequence[Run], arm: str) -> float:
    return statistics.median(float(run[arm]["start_s"]) for run in runs if arm in run)
