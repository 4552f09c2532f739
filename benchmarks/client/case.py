"""What a request costs the client, ours and others side by side."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.client.report import plot, table
from benchmarks.results import ResultFile
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "How much processor time does a request cost the client, compared with other ways to send it?"

ARMS = ("ours", "ours-httpx2", "openai", "httpx-pool", "httpx-pool-tuned", "aiohttp")
LOOPS = ("asyncio", "uvloop")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--concurrency", default="64,256", metavar="N,…", help="requests in flight")
    parser.add_argument("--seconds", type=float, metavar="S", help="of one sample (3, quick 0.5)")
    parser.add_argument("--rounds", type=int, metavar="N", help="samples of each arm (3, quick 1)")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    seconds = options.seconds or (0.5 if options.quick else 3.0)
    rounds = options.rounds or (1 if options.quick else 3)
    levels = [8] if options.quick else [int(each) for each in options.concurrency.split(",")]
    needs = {"ours-httpx2": "httpx2", "openai": "openai", "aiohttp": "aiohttp", "uvloop": "uvloop"}
    missing = {name for name, module in needs.items() if importlib.util.find_spec(module) is None}
    file = ResultFile("client", options.out, quick=options.quick)
    samples: dict[str, list[dict[str, Any]]] = {}
    with _stub() as url:
        for _ in range(rounds):  # round by round, so that a busy moment of the machine meets all arms
            for loop in (each for each in LOOPS if each not in missing):
                for concurrency in levels:
                    for arm in (each for each in ARMS if each not in missing):
                        found = _sample(arm, url, concurrency, seconds, loop)
                        samples.setdefault(f"{loop} {concurrency} {arm}", []).append(found)
    body = {
        "parameters": {"ids": 2000, "concurrency": levels, "seconds": seconds, "rounds": rounds},
        "missing": sorted(missing),
        "arms": {name: _sum_up(found) for name, found in samples.items()},
    }
    problems = [name for name, found in samples.items() if any(each["wrong"] or not each["requests"] for each in found)]
    return file.save(body, complete=True, problems=[f"{name}: wrong or no answers" for name in problems])


def _sum_up(found: list[dict[str, Any]]) -> dict[str, Any]:
    cpu_us = [1e6 * each["cpu_s"] / max(1, each["requests"]) for each in found]
    latencies = sorted(value for each in found for value in each["latencies_s"])

    def at(share: float) -> float:
        return round(1e3 * latencies[min(len(latencies) - 1, int(share * len(latencies)))], 2) if latencies else 0.0

    return {
        "cpu_us": round(statistics.median(cpu_us), 1),
        "cpu_us_samples": [round(each, 1) for each in cpu_us],
        "per_s": round(statistics.median(each["requests"] / each["seconds"] for each in found), 1),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "requests": sum(each["requests"] for each in found),
    }


def _sample(arm: str, url: str, concurrency: int, seconds: float, loop: str) -> dict[str, Any]:
    environment = {**os.environ, "HS_HTTP": "httpx2" if arm == "ours-httpx2" else "httpx"}
    line = [sys.executable, "-m", "benchmarks.client.measure", arm, url, str(concurrency), str(seconds), loop]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    if done.returncode:
        raise HsError(f"the arm {arm} failed: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def _stub() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    line = [sys.executable, "-m", "benchmarks.client.stub", str(port)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=ROOT) as stub:
        try:
            if stub.stdout is None or not stub.stdout.readline():
                raise HsError("the stub server does not start")
            yield f"http://127.0.0.1:{port}"
        finally:
            stub.kill()
