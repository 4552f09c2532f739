"""What the capture costs: prefill and decode with and without it, CUDA graphs on and off."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.results import ResultFile
from benchmarks.sampling import Ratio, paired_ratio, ratio_of_medians
from benchmarks.serving import add_target_arguments, target_of
from benchmarks.throughput.arms import ARMS, Arm, ArmResult, Plan, measure
from benchmarks.throughput.report import plot, table
from hs_formats.errors import HsError, UsageError

__all__ = ["QUESTION", "add_arguments", "plot", "ratios", "run", "table"]

QUESTION = "What does the capture cost in prefill and decode, CUDA graphs on and off?"

_FULL: dict[str, int | str] = {"concurrency": 64, "lengths": "1400:1600", "block": 128, "pairs": 6, "blocks": 4}
_QUICK: dict[str, int | str] = {"concurrency": 8, "lengths": "20:60", "block": 16, "pairs": 2, "blocks": 2}
_QUICK_ARMS = ("off-none", "off-capture")

_SAME_AGAIN = 1.05
"""How much faster the same prompts may be when sent once more; with a cache of prefixes they are many times so."""

_SHORTEST_MEASUREMENT_S = 30.0
_START_GUESS_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    add_target_arguments(parser)
    parser.add_argument("--arms", help="comma-separated, in order (default: all that the machine can run)")
    parser.add_argument("--concurrency", type=int, metavar="N", help=f"requests in flight ({_FULL['concurrency']})")
    parser.add_argument("--lengths", metavar="LOW:HIGH", help=f"prompt tokens, uniform ({_FULL['lengths']})")
    parser.add_argument("--block", type=int, metavar="N", help=f"requests a block ({_FULL['block']})")
    parser.add_argument("--pairs", type=int, metavar="N", help=f"pairs of blocks while capturing ({_FULL['pairs']})")
    parser.add_argument("--blocks", type=int, metavar="N", help=f"blocks of the other arms ({_FULL['blocks']})")
    parser.add_argument("--seed", type=int, default=1, help="of the prompt lengths")
    parser.add_argument("--deadline", type=float, metavar="S", help="start no arm that would not end within S seconds")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    began = time.monotonic()
    target = target_of(options)
    defaults = _QUICK if options.quick else _FULL
    values: dict[str, int | str] = {name: getattr(options, name) or default for name, default in defaults.items()}
    lengths = _lengths(str(values.pop("lengths")), longest=target.context_length - 8)
    plan = Plan(
        lengths=lengths,
        decode_tokens=20 if options.quick else 200,
        decode_runs=1 if options.quick else 3,
        seed=options.seed,
        ends_at=began + options.deadline if options.deadline else None,
        **{name: int(value) for name, value in values.items()},
    )
    arms = _arms(options.arms, cpu=target.cpu, quick=options.quick)
    if target.cpu:
        sys.stderr.write("SKIPPED: arms with CUDA graphs: this machine has no GPU, or --profile cpu was asked for\n")
    file = ResultFile("throughput", options.out, label=target.label, quick=options.quick)
    done: dict[str, ArmResult] = {}
    problems: list[str] = []
    skipped: list[str] = []

    def save(*, complete: bool) -> Path:
        parameters = {
            "model": target.label,
            "profile": target.profile,
            "tp": target.tp,
            "server_args": list(target.server_args),
            **{name: value for name, value in asdict(plan).items() if name != "ends_at"},
        }
        body = {
            "label": target.label,
            "parameters": parameters,
            "skipped_arms": skipped,
            **ratios(done),
            "arms": done,
        }
        return file.save(body, complete=complete, problems=problems)

    path = file.path
    for arm in arms:
        started = time.monotonic()
        if plan.ends_at is not None and started + _least_seconds(arm, done) > plan.ends_at:
            skipped.append(arm.name)
            continue
        try:
            result = measure(arm, plan, target)
        except HsError as error:
            problems.append(str(error))
            sys.stderr.write(f"arm {arm.name}: {error}\n")
            path = save(complete=False)
            continue
        done[arm.name] = result
        figures = bool(file.head["times_mean_something"])
        problems += [f"{arm.name}: {text}" for text in _problems(result, figures=figures)]
        path = save(complete=False)
        sys.stderr.write(f"arm {arm.name}: {time.monotonic() - started:.0f} s, start {result.start_s:.0f} s\n")
    path = save(complete=bool(done))
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


def ratios(arms: dict[str, ArmResult]) -> dict[str, Ratio]:
    """What a reader wants to know, as far as the arms were run."""
    found: dict[str, Ratio] = {}
    for graphs in ("on", "off"):
        suffix = "" if graphs == "on" else "_graphs_off"
        none, dormant = arms.get(f"{graphs}-none"), arms.get(f"{graphs}-dormant")
        capture = arms.get(f"{graphs}-capture")
        if capture and capture.ours:
            count = min(len(capture.ours), len(capture.foreign))
            found[f"capture_ratio{suffix}"] = paired_ratio(capture.ours[:count], capture.foreign[:count])
        if capture and none:
            found[f"aux_ratio{suffix}"] = ratio_of_medians(capture.foreign, none.foreign)
            found[f"total_ratio{suffix}"] = ratio_of_medians(capture.ours, none.foreign)
            found[f"decode_ratio{suffix}"] = ratio_of_medians(capture.decode_tokens_per_s, none.decode_tokens_per_s)
        if dormant and none:
            found[f"dormant_ratio{suffix}"] = ratio_of_medians(dormant.foreign, none.foreign)
    source, none = arms.get("source"), arms.get("on-none")
    if source and source.ours:
        count = min(len(source.ours), len(source.foreign))
        found["source_ratio"] = paired_ratio(source.ours[:count], source.foreign[:count])
        if none:
            found["source_total_ratio"] = ratio_of_medians(source.ours, none.foreign)
    on, off = arms.get("on-none"), arms.get("off-none")
    if on and off:
        found["graphs_ratio"] = ratio_of_medians(on.foreign, off.foreign)
    return found


def _least_seconds(arm: Arm, done: dict[str, ArmResult]) -> float:
    """What an arm takes at the least, judged by the starts so far; capturing graphs makes a start longer."""
    alike = [result.start_s for result in done.values() if result.graphs == arm.graphs]
    starts = alike or [result.start_s * (1.0 if arm.graphs else 0.6) for result in done.values()] or [_START_GUESS_S]
    return max(starts) + _SHORTEST_MEASUREMENT_S


def _problems(result: ArmResult, *, figures: bool) -> list[str]:
    found = list(result.problems)
    if figures and result.again and result.again[1] > _SAME_AGAIN * result.again[0]:
        found.append(
            f"the same prompts are {result.again[1] / result.again[0]:.3f} times as fast again: what was kept?"
        )
    if result.plugin == "capture":
        failed = sum(counters["failed"] for counters in result.capture)
        if failed or not result.capture:
            found.append(f"{failed} requests given up by {len(result.capture)} ranks")
    if not result.testimony:
        found.append("no scheduler process said which functions the capture replaced")
    for item in result.testimony:
        ours = bool(item["capture_modules"]) or any(entry["hooked"] for entry in item["functions"].values())
        if ours != (result.plugin == "capture"):
            found.append(f"the capture is {'there' if ours else 'not there'}: {item}")
    return found


def _arms(given: str | None, *, cpu: bool, quick: bool) -> list[Arm]:
    if given:
        names = [name.strip() for name in given.split(",")]
        unknown = [name for name in names if name not in ARMS]
        if unknown:
            raise UsageError(f"no arm is called {unknown[0]!r}; arms: {', '.join(ARMS)}")
        return [ARMS[name] for name in names]
    if quick:
        return [ARMS[name] for name in _QUICK_ARMS]
    # The dormant arm costs a start and is the same with graphs off; on a CPU there are no graphs; the patch is for few
    # models.
    return [arm for arm in ARMS.values() if (not arm.graphs if cpu else arm.name not in ("off-dormant", "source"))]


def _lengths(text: str, *, longest: int) -> tuple[int, int]:
    low, _, high = text.partition(":")
    if not (low.isdigit() and (high or low).isdigit()) or not 0 < int(low) <= int(high or low) <= longest:
        raise UsageError(f"--lengths {text!r} is not LOW:HIGH with 0 < LOW <= HIGH <= {longest}")
    return int(low), int(high or low)
