"""What the server does when nobody empties scratch: it must go on serving, and account for every request of ours."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import Prompt, drive, foreign_rids, our_rids
from benchmarks.records import find_parts
from benchmarks.results import ResultFile
from benchmarks.serving import Server, Target, add_target_arguments, target_of
from benchmarks.stall.report import plot, table
from benchmarks.stall.watch import Watch, growth
from benchmarks.tmpfs import mounted_tmpfs
from hs_formats.errors import HsError
from hs_formats.tiling import cover

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "Does the server stay healthy, and account for every request, when nobody empties scratch?"

_ROUND = 4
"""Requests of a round, as a multiple of the concurrency; every fifth of them is foreign."""

_FOREIGN_EVERY = 5
_MAX_GROWTH = 0.03
_MAX_GROWTH_BYTES = 96 << 20
_ACCOUNT_TIMEOUT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    add_target_arguments(parser)
    parser.add_argument("--seconds", type=float, metavar="S", help="how long the load lasts (600, quick 20)")
    parser.add_argument("--size", metavar="SIZE", help="of the tmpfs, as mount takes it (64m, quick 4m)")
    parser.add_argument("--lengths", default="20:200", metavar="LOW:HIGH", help="prompt tokens, uniform")
    parser.add_argument("--concurrency", type=int, default=16, metavar="N", help="requests in flight")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    target = target_of(options)
    seconds = options.seconds or (20.0 if options.quick else 600.0)
    size = options.size or ("4m" if options.quick else "64m")
    low, _, high = options.lengths.partition(":")
    file = ResultFile("stall", options.out, label=target.label, quick=options.quick)
    parameters = {
        "model": target.label,
        "profile": target.profile,
        "tp": target.tp,
        "server_args": list(target.server_args),
        "seconds": seconds,
        "tmpfs": size,
        "lengths": [int(low), int(high or low)],
        "concurrency": options.concurrency,
    }
    body: dict[str, Any] = {"label": target.label, "parameters": parameters}
    problems: list[str] = []
    with mounted_tmpfs(target.scratch / "stall", size) as scratch:
        server = Server(target, name="stall", plugin="capture", scratch=scratch)
        with server:
            lengths = (int(low), int(high or low))
            body |= _load(server, target, seconds, lengths, options.concurrency, problems)
    path = file.save(body, complete=True, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


def _load(
    server: Server, target: Target, seconds: float, lengths: tuple[int, int], concurrency: int, problems: list[str]
) -> dict[str, Any]:
    generator = np.random.default_rng()
    run = secrets.token_hex(4)
    ours: dict[str, int] = {}
    failures: list[str] = []
    totals = {"requests": 0, "foreign": 0, "rounds": 0}

    def round_of(prompts: list[Prompt]) -> None:
        load = drive(server.url, prompts, concurrency=concurrency)
        failures.extend(load.failures)
        totals["requests"] += load.requests
        totals["rounds"] += 1

    def prompts(count: int) -> list[Prompt]:
        made: list[Prompt] = []
        for number, n in enumerate(generator.integers(lengths[0], lengths[1] + 1, size=count)):
            ids = target.vocabulary.draw(int(n), generator)
            if number % _FOREIGN_EVERY == _FOREIGN_EVERY - 1:
                made.append(Prompt(foreign_rids(1)[0], ids))
                totals["foreign"] += 1
            else:
                (rid,) = our_rids(run, len(ours), 1)
                ours[rid] = len(ids)
                made.append(Prompt(rid, ids))
        return made

    round_of(prompts(concurrency))
    with Watch(server) as watch:
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            round_of(prompts(_ROUND * concurrency))
        complete, given_up, lost = _account(server, ours, watch)
        statistics = server.statistics()
        leftovers = [name for name in os.listdir(server.scratch) if name.endswith(".tmp")]
        # Space comes back: the next requests must be captured again.
        for name in os.listdir(server.scratch):
            if name.endswith(".pt"):
                (server.scratch / name).unlink()
        before = dict(ours)
        round_of(prompts(2))
        again = {rid: n for rid, n in ours.items() if rid not in before}
        recovered, _, _ = _account(server, again, watch)
    problems += failures
    problems += [f"health: {text}" for text in watch.health_problems]
    problems += [f"{len(lost)} requests neither complete nor given up, such as {lost[0]}"] if lost else []
    problems += [f"{len(leftovers)} temporary files were left behind"] if leftovers else []
    problems += [] if recovered == len(again) else ["after space was freed, requests were still not captured"]
    problems += [] if given_up else ["scratch never filled: nothing was tested"]
    memory = growth(watch.memory)
    problems += [
        f"memory of pid {item['pid']} grew by {item['grown_bytes'] / 2**20:.0f} MiB"
        for item in memory
        if item["grown_bytes"] > max(_MAX_GROWTH_BYTES, _MAX_GROWTH * item["early_bytes"])
    ]
    return {
        "counts": {**totals, "ours": len(ours), "complete": complete, "given_up": given_up, "lost": len(lost)},
        "recovered_after_space": recovered == len(again),
        "health_checks": watch.health_checks,
        "health_slowest_s": round(watch.health_slowest_s, 3),
        "failure_records_overwritten": watch.overwritten,
        "memory": memory,
        "memory_samples": watch.memory,
        "ring_waits": [item.ring_waits for item in statistics],
        "ring_waited_s": [round(item.ring_waited_s, 3) for item in statistics],
        "failed_counted": [item.failed for item in statistics],
    }


def _account(server: Server, ours: dict[str, int], watch: Watch) -> tuple[int, int, list[str]]:
    """(complete on disk, given up, neither), once nothing changes any more."""
    deadline = time.monotonic() + _ACCOUNT_TIMEOUT_S
    while True:
        parts = find_parts(server.scratch)
        complete = {
            rid
            for rid, n in ours.items()
            if cover(n, [(part.start, part.stop) for part in parts.get((rid, 0), [])]).exact
        }
        watch.poll_failures()
        given_up = {rid for rid in ours if rid in watch.given_up}
        lost = [rid for rid in ours if rid not in complete and rid not in given_up]
        if not lost or time.monotonic() > deadline:
            return len(complete - given_up), len(given_up), lost
        time.sleep(0.2)
