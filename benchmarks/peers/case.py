"""The capture beside other ways to get hidden states of prompts onto disk; results of several runs add up."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.cells import Cell, chosen, parse_cells
from benchmarks.peers.contestants import BASELINE, CONTESTANTS, Contestant, absent
from benchmarks.peers.loop import in_a_process
from benchmarks.peers.merge import merge, ratios
from benchmarks.peers.report import plot, table
from benchmarks.peers.served import measure_served
from benchmarks.results import ResultFile, alike
from benchmarks.serving import Target, add_target_arguments, target_of
from hs_formats.boundaries import resolve_boundaries
from hs_formats.errors import HsError, UsageError

__all__ = ["QUESTION", "add_arguments", "merge", "plot", "run", "table"]

QUESTION = "How fast do hidden states of prompts become files, beside other ways to get them?"

_LENGTHS = (128, 1500, 8000)
_IN_FLIGHT = (1, 16, 64, 256)
_QUICK_CELLS = (Cell(24, 1), Cell(48, 4))
_QUICK_ARMS = (BASELINE, "capture", "http", "transformers-pt", "transformers-gz")
_ARM_GUESS_S = 150.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    add_target_arguments(parser)
    parser.add_argument("--arms", help=f"comma-separated; of {', '.join(CONTESTANTS)} (default: all that can)")
    parser.add_argument("--cells", metavar="TxN,…", help="tokens x in flight (128, 1500, 8000 x 1, 16, 64, 256)")
    parser.add_argument("--blocks", type=int, default=2, metavar="N", help="samples of each cell")
    parser.add_argument("--least-tokens", type=int, metavar="N", help="of a block (60000, quick 200)")
    parser.add_argument("--deadline", type=float, metavar="S", help="start nothing that would not end within S seconds")
    parser.add_argument(
        "--go-on", action="store_true", help="only what the results in --out lack, and the ceiling to hold it against"
    )


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    ends_at = time.monotonic() + options.deadline if options.deadline else None
    target = target_of(options)
    config = _config(target)
    cells = _cells(options, target)
    plan: dict[str, Any] = {
        "blocks": options.blocks,
        "least_tokens": options.least_tokens or (200 if options.quick else 60_000),
    }
    file = ResultFile("peers", options.out, label=target.label, quick=options.quick)
    body: dict[str, Any] = {
        "label": target.label,
        "parameters": {
            "model": target.label, "profile": target.profile, "tp": target.tp,
            "server_args": list(target.server_args), "cells": [str(cell) for cell in cells], **plan,
        },
        "runs": [{}],
        "absent": {},
        "left": [],
    }  # fmt: skip
    before = alike(file.head | body, "peers", options.out) if options.go_on else []
    todo = _todo(options, target, config, body["absent"], {name for found in before for name in found["runs"][0]})
    problems: list[str] = []
    longest_s = _ARM_GUESS_S
    measured: dict[str, Any] = body["runs"][0]
    for one in todo:
        began = time.monotonic()
        if ends_at is not None and began + longest_s > ends_at:
            body["left"].append(one.name)
            continue
        try:
            found = _measure(one, target, config, cells, plan)
        except HsError as error:
            problems.append(f"{one.name}: {error}")
            continue
        measured[one.name] = {"kind": one.kind, **found}
        problems += found["problems"]
        longest_s = max(longest_s if len(measured) > 1 else 0.0, time.monotonic() - began)
        file.save(body, complete=False, problems=problems)
        sys.stderr.write(f"{one.name}: {time.monotonic() - began:.0f} s\n")
    if body["left"]:
        sys.stderr.write(f"left for the next run with --go-on: {', '.join(body['left'])}\n")
    body["ratios"] = ratios(body["runs"])
    return file.save(body, complete=bool(measured), problems=problems)


def _todo(
    options: argparse.Namespace, target: Target, config: dict[str, Any], missing: dict[str, str], done: set[str]
) -> list[Contestant]:
    names = options.arms.split(",") if options.arms else (_QUICK_ARMS if options.quick else tuple(CONTESTANTS))
    names = [name.strip() for name in names]
    unknown = [name for name in names if name not in CONTESTANTS]
    if unknown:
        raise UsageError(f"nobody is called {unknown[0]!r}; contestants: {', '.join(CONTESTANTS)}")
    architecture = str((config.get("architectures") or [config.get("model_type", "?")])[0])
    able: list[Contestant] = []
    for one in (CONTESTANTS[name] for name in names):
        why = absent(one, target, architecture)
        if why:
            missing[one.name] = why
            sys.stderr.write(f"SKIPPED: {one.name}: {why}\n")
        elif one.name not in done:
            able.append(one)
    if able and options.go_on and CONTESTANTS[BASELINE] not in able:
        able.insert(0, CONTESTANTS[BASELINE])
    if not able and done:
        raise UsageError("nothing is left: all that can take part is in the results; python -m benchmarks report peers")
    return able


def _measure(
    one: Contestant, target: Target, config: dict[str, Any], cells: Sequence[Cell], plan: dict[str, Any]
) -> dict[str, Any]:
    plan = {**plan, "least_tokens": max(1, int(one.share * plan["least_tokens"]))}
    if one.kind == "server":
        fitting = [cell for cell in cells if cell.tokens * cell.in_flight <= one.most_tokens]
        return measure_served(one, target, fitting, **plan)
    target.scratch.mkdir(parents=True, exist_ok=True)
    try:
        return in_a_process(
            model=target.model_path,
            drawn="dummy" in target.server_args,
            device="cpu" if target.cpu else "cuda",
            boundaries=resolve_boundaries(int(config["num_hidden_layers"])),
            vocabulary=target.vocabulary.size,
            lengths=sorted({cell.tokens for cell in cells}),
            folder=str(target.scratch),
            gz=one.gz,
            **plan,
        )
    finally:
        target.scratch.rmdir()


def _config(target: Target) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((Path(target.model_path) / "config.json").read_bytes())
    return {**config, **(config.get("text_config") or {})}


def _cells(options: argparse.Namespace, target: Target) -> list[Cell]:
    if options.cells:
        return parse_cells(options.cells)
    if options.quick:
        return list(_QUICK_CELLS)
    return chosen(_LENGTHS, _IN_FLIGHT, longest=target.context_length - 8)
