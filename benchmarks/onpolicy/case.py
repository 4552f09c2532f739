"""Answers generated and captured on one server, beside the ways with two; results of several runs add up."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.onpolicy.arms import ARMS, BASELINE, Arm, absent, measure
from benchmarks.onpolicy.endless import WITHOUT_TOKENIZER, endless
from benchmarks.onpolicy.figures import merge, ratios
from benchmarks.onpolicy.plan import Plan, Questions
from benchmarks.onpolicy.report import plot, table
from benchmarks.results import ResultFile, alike
from benchmarks.serving import Target, add_target_arguments, target_of
from hs_formats.errors import HsError, UsageError

__all__ = ["QUESTION", "add_arguments", "merge", "plot", "run", "table"]

QUESTION = (
    "From prompts alone to training data on one server: how fast are answers, and what does a second server cost?"
)

_FULL = {"prompt_tokens": 512, "new_tokens": 256, "in_flight": 64, "samples": 512, "blocks": 2}
_QUICK = {"prompt_tokens": 24, "new_tokens": 12, "in_flight": 4, "samples": 8, "blocks": 1}
_ARM_GUESS_S = 150.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    add_target_arguments(parser)
    parser.add_argument("--arms", help=f"comma-separated, of {', '.join(ARMS)} (default: all that can)")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help=f"of a question ({_FULL['prompt_tokens']})")
    parser.add_argument("--new-tokens", type=int, metavar="N", help=f"of an answer ({_FULL['new_tokens']})")
    parser.add_argument("--in-flight", type=int, metavar="N", help=f"requests at a time ({_FULL['in_flight']})")
    parser.add_argument("--samples", type=int, metavar="N", help=f"of a block ({_FULL['samples']})")
    parser.add_argument("--blocks", type=int, metavar="N", help=f"of each kind ({_FULL['blocks']})")
    parser.add_argument(
        "--disk", type=Path, metavar="DIR", help="datasets are made and removed there (default: --work)"
    )
    parser.add_argument("--deadline", type=float, metavar="S", help="start nothing that would not end within S seconds")
    parser.add_argument(
        "--go-on", action="store_true", help=f"only what the results in --out lack, and {BASELINE} to hold it against"
    )


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    ends_at = time.monotonic() + options.deadline if options.deadline else None
    defaults = _QUICK if options.quick else _FULL
    plan = Plan(**{name: default if (given := getattr(options, name)) is None else given
                   for name, default in defaults.items()})  # fmt: skip
    target = _target(options, plan)
    file = ResultFile("onpolicy", options.out, label=target.label, quick=options.quick)
    body: dict[str, Any] = {
        "label": target.label,
        "parameters": {
            "model": target.label, "profile": target.profile, "tp": target.tp,
            "server_args": list(target.server_args), **dataclasses.asdict(plan),
        },
        "runs": [{}],
        "absent": {},
        "left": [],
    }  # fmt: skip
    before = alike(file.head | body, "onpolicy", options.out) if options.go_on else []
    todo = _todo(options, target, body["absent"], {name for found in before for name in found["runs"][0]})
    problems: list[str] = []
    told: list[tuple[Questions, Questions]] = []
    measured: dict[str, Any] = body["runs"][0]
    longest_s = _ARM_GUESS_S
    for arm in todo:
        began = time.monotonic()
        if ends_at is not None and began + longest_s > ends_at:
            body["left"].append(arm.name)
            continue
        try:
            found = measure(arm, target, plan, options.disk or target.work, told)
        except HsError as error:
            problems.append(f"{arm.name}: {error}")
        else:
            measured[arm.name] = found
            problems += found.problems
        if problems:  # no figure comes of it any more, and `two` needs whole answers
            break
        longest_s = max(longest_s if len(measured) > 1 else 0.0, time.monotonic() - began)
        file.save(body, complete=False, problems=problems)
        sys.stderr.write(f"{arm.name}: {time.monotonic() - began:.0f} s\n")
    body["runs"] = [{name: dataclasses.asdict(found) for name, found in measured.items()}]
    if body["left"]:
        sys.stderr.write(f"left for the next run with --go-on: {', '.join(body['left'])}\n")
    body["ratios"] = {} if problems else ratios(body["runs"])
    return file.save(body, complete=BASELINE in measured, problems=problems)


def _target(options: argparse.Namespace, plan: Plan) -> Target:
    """The target, never ending an answer by itself.

    Raises:
        UsageError: there is no model, or samples would be longer than it takes.
    """
    target = target_of(options)
    if plan.tokens > target.context_length - 8:
        raise UsageError(
            f"{plan.tokens} tokens of question and answer, and the model takes {target.context_length - 8}"
        )
    model = endless(Path(target.model_path), target.work / "endless" / target.label)
    more = () if WITHOUT_TOKENIZER in target.server_args else (WITHOUT_TOKENIZER,)
    return dataclasses.replace(target, model_path=str(model), server_args=(*target.server_args, *more))


def _todo(options: argparse.Namespace, target: Target, missing: dict[str, str], done: set[str]) -> list[Arm]:
    names = [name.strip() for name in options.arms.split(",")] if options.arms else list(ARMS)
    unknown = [name for name in names if name not in ARMS]
    if unknown:
        raise UsageError(f"no arm is called {unknown[0]!r}; arms: {', '.join(ARMS)}")
    able: list[Arm] = []
    for arm in (ARMS[name] for name in names):
        why = absent(arm, target)
        if why:
            missing[arm.name] = why
            sys.stderr.write(f"SKIPPED: {arm.name}: {why}\n")
        elif arm.name != BASELINE and arm.name not in done:
            able.append(arm)
    if not able and done:
        raise UsageError("nothing is left: all arms are in the results; python -m benchmarks report onpolicy")
    return [ARMS[BASELINE], *able]
