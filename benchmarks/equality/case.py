"""Whether the same prompts give the same states: under CUDA graphs as eagerly, on every rank, alone as in a crowd."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.equality.report import plot, table
from benchmarks.load import Prompt, drive, our_rids
from benchmarks.realistic_weights import VARIABLE
from benchmarks.records import Comparison, Record, find_parts, read_record, relative_error, wait_for_records
from benchmarks.results import ResultFile
from benchmarks.serving import Server, Target, add_target_arguments, target_of
from hs_formats.errors import HsError, UsageError
from hs_formats.names import PartName

__all__ = ["QUESTION", "add_arguments", "plot", "prompt_lengths", "run", "table"]

QUESTION = "Are states captured under CUDA graphs equal to eager ones, and those of all TP ranks to each other?"

_ROUNDING = 0.1
"""Part of the smallest change from slot to slot that may come of bfloat16 kernels summing in another order.

Without bit-equality, states are told from those of a shifted row or of a neighbouring layer by distance alone.
"""

_LAYER_CHANGE = 1e-2
"""Slots must differ by more than this, or equal states prove nothing."""

_PASSES = ("crowd", "alone")

_Parts = dict[tuple[str, int], list[PartName]]


@dataclass(frozen=True, slots=True)
class _Arm:
    name: str
    arguments: tuple[str, ...] = ()
    writers: str = "first"


_GRAPH = "--cuda-graph-backend-prefill"
_ARMS = {
    arm.name: arm
    for arm in (
        _Arm("eager", ("--disable-cuda-graph",)),
        _Arm("tc_piecewise", (_GRAPH, "tc_piecewise")),
        _Arm("breakable", (_GRAPH, "breakable")),
        _Arm("default"),
        _Arm("repeat"),
        _Arm("first"),
        _Arm("spread", (), "spread"),
        _Arm("all", (), "all"),
    )
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    add_target_arguments(parser)
    parser.add_argument("--arms", help=f"comma-separated, the first is the reference; of {', '.join(_ARMS)}")
    parser.add_argument("--records", type=int, metavar="N", help="prompts (96, quick 12)")
    parser.add_argument("--longest", type=int, metavar="N", help="tokens of the longest prompt (8000, quick 90)")
    parser.add_argument("--concurrency", type=int, default=48, metavar="N", help="requests in flight in the crowd")
    parser.add_argument("--seed", type=int, default=7, help="of lengths and ids")
    parser.add_argument("--deadline", type=float, metavar="S", help="start no arm that would not end within S seconds")
    parser.add_argument("--keep-weights", action="store_true", help="do not re-draw the weights of --dummy models")


def prompt_lengths(count: int, longest: int, *, seed: int) -> list[int]:
    """`count` lengths from 1 to `longest`, log-uniform, both ends and their neighbours among them, shuffled."""
    generator = np.random.default_rng(seed)
    drawn = np.exp(generator.uniform(0.0, np.log(longest), size=count)).astype(int)
    fixed = [1, 2, longest, max(1, longest - 1)][:count]
    lengths = [*fixed, *(int(n) for n in drawn[len(fixed) :])]
    generator.shuffle(lengths)
    return [min(max(1, n), longest) for n in lengths]


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    ends_at = time.monotonic() + options.deadline if options.deadline else None
    target = target_of(options)
    count, longest = (
        options.records or (12 if options.quick else 96),
        options.longest or (90 if options.quick else 8000),
    )
    longest = min(longest, target.context_length - 8)
    lengths = prompt_lengths(count, longest, seed=options.seed)
    generator = np.random.default_rng(options.seed)
    ids = [target.vocabulary.draw(n, generator) for n in lengths]
    arms = _chosen(options.arms, target)
    redrawn = (bool(options.dummy) and not options.keep_weights) or bool(os.environ.get(VARIABLE))
    environment = {VARIABLE: "1"} if redrawn else {}
    label = "-".join([target.label, *(arm.name for arm in arms[1:] if options.arms)])
    file = ResultFile("equality", options.out, label=label, quick=options.quick)
    body: dict[str, Any] = {
        "label": label,
        "parameters": {
            "model": target.label,
            "profile": target.profile,
            "tp": target.tp,
            "server_args": list(target.server_args),
            "weights": "re-drawn, std 0.02, norms 1" if redrawn else "as loaded",
            "records": count,
            "longest": longest,
            "tokens": sum(lengths),
            "concurrency": options.concurrency,
            "seed": options.seed,
        },
        "skipped_arms": [],
        "arms": {},
        "comparisons": [],
    }
    problems: list[str] = []
    reference: Path | None = None
    longest_s = 0.0
    servers: list[Server] = []
    try:
        for arm in arms:
            started = time.monotonic()
            if ends_at is not None and started + max(longest_s, 60.0) > ends_at:
                body["skipped_arms"].append(arm.name)
                continue
            server = Server(
                target,
                name=arm.name,
                plugin="capture",
                arguments=() if target.cpu else arm.arguments,
                options=("--writers", arm.writers),
                environment=environment,
            )
            servers.append(server)
            try:
                done = _run_arm(server, arm, ids, options.concurrency)
            except HsError as error:
                problems.append(str(error))
                continue
            problems += done.pop("problems")
            body["arms"][arm.name] = done
            body["comparisons"] += _compare_arm(server.scratch, reference, arm, arms[0].name, lengths)
            if reference is None:
                reference = server.scratch
                body["slot_change"] = change = _slot_change(server.scratch, lengths)
                if min(change) < _LAYER_CHANGE:
                    problems.append(
                        f"neighbouring slots differ by {min(change):.1e} only: equality would prove nothing"
                    )
            else:
                server.remove_scratch()
            longest_s = max(longest_s, time.monotonic() - started)
            file.save(body, complete=False, problems=problems)
            sys.stderr.write(f"arm {arm.name}: {time.monotonic() - started:.0f} s\n")
    finally:
        for server in servers:
            server.remove_scratch()
    limit = body["rounding_limit"] = round(_ROUNDING * min(body.get("slot_change", [0.0])), 4)
    problems += _differences(body["comparisons"], limit)
    path = file.save(body, complete=len(body["arms"]) > 0, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


def _chosen(given: str | None, target: Target) -> list[_Arm]:
    if given:
        names = [name.strip() for name in given.split(",")]
    elif target.tp > 1:
        names = ["first", "spread", "all"]
    else:
        names = ["eager", "repeat"] if target.cpu else ["eager", "tc_piecewise", "breakable"]
    unknown = [name for name in names if name not in _ARMS]
    if unknown:
        raise UsageError(f"no arm is called {unknown[0]!r}; arms: {', '.join(_ARMS)}")
    return [_ARMS[name] for name in names]


def _run_name(which: int) -> str:
    return f"{0xE0_0000_00 + which:08x}"


def _run_arm(server: Server, arm: _Arm, ids: list[list[int]], concurrency: int) -> dict[str, Any]:
    """Send all prompts, in a crowd and then one at a time; the parts stay in scratch."""
    found: dict[str, Any] = {"passes": {}, "problems": []}
    with server:
        found["start_s"] = round(server.start_s, 1)
        ranks = [marker.rank for marker in server.markers()]
        before = server.statistics()
        for number, name in enumerate(_PASSES):
            rids = our_rids(_run_name(number), 0, len(ids))
            prompts = [Prompt(rid, tokens) for rid, tokens in zip(rids, ids, strict=True)]
            load = drive(server.url, prompts, concurrency=concurrency if name == "crowd" else 1)
            wanted = {prompt.rid: len(prompt.input_ids) for prompt in prompts}
            writing = ranks if arm.writers != "first" else [0]
            missing = wait_for_records(server.scratch, wanted, ranks=writing, each=arm.writers == "all")
            found["problems"] += [f"{arm.name}, {name}: {text}" for text in load.failures]
            found["problems"] += [f"{arm.name}, {name}: record {rid} is incomplete" for rid in missing]
            after = server.statistics()
            found["passes"][name] = {
                "seconds": round(load.seconds, 2),
                "forwards": after[0].forwards - before[0].forwards,
                "graph_replays": after[0].graph_replays - before[0].graph_replays,
                "parts": sum(item.files for item in after) - sum(item.files for item in before),
                "failed": sum(item.failed for item in after),
            }
            before = after
    found["ranks"] = ranks
    return found


def _compare_arm(
    scratch: Path, reference: Path | None, arm: _Arm, reference_name: str, lengths: list[int]
) -> list[dict[str, Any]]:
    """This arm against the reference, alone against the crowd, and rank against rank."""
    mine = find_parts(scratch)
    theirs = find_parts(reference) if reference is not None else {}
    others = sorted({rank for _, rank in mine})[1:] if arm.writers == "all" else []
    one = None if arm.writers == "spread" else 0

    def read(folder: Path, parts: _Parts, rid: str, rank: int | None) -> Record:
        writers = sorted({writer for of, writer in parts if of == rid and rank in (None, writer)})
        return read_record(folder, [name for writer in writers for name in parts[rid, writer]])

    def of_row(row: int) -> dict[tuple[str, str], Comparison]:
        found: dict[tuple[str, str], Comparison] = defaultdict(Comparison)
        passes: list[Record] = []
        for number, name in enumerate(_PASSES):
            (rid,) = our_rids(_run_name(number), row, 1)
            record = read(scratch, mine, rid, one)
            passes.append(record)
            if reference is not None:
                found[name, f"{reference_name}, {name}"].add(rid, record, read(reference, theirs, rid, 0))
            for rank in others:
                found[f"rank {rank}", "rank 0"].add(rid, read(scratch, mine, rid, rank), record)
        found["crowd", "itself, alone"].add(f"row {row}", passes[0], passes[1])
        return found

    total: dict[tuple[str, str], Comparison] = defaultdict(Comparison)
    # Reading and comparing release the interpreter's lock.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for found in pool.map(of_row, range(len(lengths))):
            for key, comparison in found.items():
                total[key].merge(comparison)
    return [
        {"arm": arm.name, "what": what, "against": against, **asdict(into)} for (what, against), into in total.items()
    ]


def _slot_change(scratch: Path, lengths: list[int]) -> list[float]:
    """Smallest relative change from slot to slot over some of the records."""
    parts = find_parts(scratch)
    changes: list[list[float]] = []
    for rid in our_rids(_run_name(0), 0, len(lengths))[:8]:
        found = read_record(scratch, parts[rid, 0])
        slots = [found.bits[:, slot] for slot in range(found.bits.shape[1])]
        changes.append([relative_error(a, b, found.dtype) for a, b in itertools.pairwise(slots)])
    return [round(min(column), 4) for column in zip(*changes, strict=True)]


def _differences(comparisons: list[dict[str, Any]], rounding: float) -> list[str]:
    found: list[str] = []
    for item in comparisons:
        worst = max(item["max_relative"], default=0.0)
        limit = 0.0 if item["against"] == "rank 0" else rounding
        if worst > limit or (limit == 0.0 and item["bit_equal"] < item["records"]):
            what = f"{item['arm']}, {item['what']} against {item['against']}"
            found.append(f"{what}: relative difference {worst:.1e}, above {limit:.1e}")
    return found
