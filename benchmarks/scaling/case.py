"""Time and memory of what reads a dataset, by its rows; of moving, by size and number of parts and by threads; of
admission, by clients that share a scratch."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.mover.arms import Arm, run_arm
from benchmarks.mover.parts import States, part_of, register, rows_for
from benchmarks.results import ResultFile
from benchmarks.scaling.growth import Growth, growths
from benchmarks.scaling.made import write_set
from benchmarks.scaling.ops import OPERATIONS, PAYLOAD_OPERATIONS
from benchmarks.scaling.report import plot, table
from hs_formats.control import ControlFolder, now_s
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "Do time and memory grow no faster than rows, parts, threads and clients do?"

_SIZES = (1_000, 10_000, 100_000, 1_000_000)
_PAYLOAD_SIZES = (1_000, 10_000, 100_000)
_QUICK_SIZES = (200, 1_000)
_PART_BYTES = (10_000, 100_000, 1_000_000, 10_000_000)
_BACKLOGS = (500, 5_000, 50_000)
_THREADS = (1, 2, 4, 8)
_CLIENTS = (1, 2, 4, 8, 16)
_MOVED_BYTES = 100_000_000
_MOST_PARTS = 4_000
_BACKLOG_PART_BYTES = 5_000
_TAKES = 4_000
_MOVER_STARTS_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--largest", type=int, metavar="N", help="rows of the largest dataset (1000000, quick 1000)")
    parser.add_argument("--stored", type=int, metavar="N", help="rows of the largest one with stored files (100000)")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"), metavar="DIR", help="on a tmpfs")
    parser.add_argument(
        "--disk", type=Path, metavar="DIR", help="where datasets are made (default: a new folder in /tmp)"
    )


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    quick: bool = options.quick
    largest = options.largest or (_QUICK_SIZES[-1] if quick else _SIZES[-1])
    sizes = [rows for rows in (_QUICK_SIZES if quick else _SIZES) if rows <= largest]
    stored = min(largest, options.stored or largest)
    payload_sizes = [rows for rows in (_QUICK_SIZES if quick else _PAYLOAD_SIZES) if rows <= stored]
    file = ResultFile("scaling", options.out, quick=quick)
    body: dict[str, Any] = {"parameters": {"rows": sizes, "rows_with_payload": payload_sizes}, "rows": {}, "parts": {}}
    problems: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.disk) as disk,
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.scratch) as scratch,
    ):
        for rows in sizes:
            _rows(Path(disk), rows, rows in payload_sizes, body["rows"], problems)
            file.save(body, complete=False, problems=problems)
        _parts(Path(scratch), Path(disk), body["parts"], quick=quick)
        file.save(body, complete=False, problems=problems)
        body["clients"] = _clients(Path(scratch), Path(disk), quick=quick)
    found = growths(body)
    body["growth"] = {name: asdict(growth) for name, growth in found.items()}
    if not quick:  # of small sets the fixed costs are what is seen
        problems += [f"{name}: {text}" for name, growth in found.items() for text in _excess(growth)]
    # Processor time of single processes: other users of the machine matter little for it.
    path = file.save({**body, "times_mean_something": not quick}, complete=True, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


def _excess(growth: Growth) -> Iterator[str]:
    if growth.time > growth.allowed:
        yield f"time grows with the power {growth.time:.2f}, more than {growth.allowed}"
    if growth.memory is not None and growth.memory > growth.allowed:
        yield f"memory grows with the power {growth.memory:.2f}, more than {growth.allowed}"


def _rows(disk: Path, rows: int, payload: bool, found: dict[str, Any], problems: list[str]) -> None:
    root = disk / "set"
    began_s = time.monotonic()
    write_set(root, rows, payload=payload)
    sys.stderr.write(f"{rows} rows made in {time.monotonic() - began_s:.0f} s\n")
    for name in [*OPERATIONS, *(PAYLOAD_OPERATIONS if payload else [])]:
        result = _operation(name, str(root))
        if result["seen"] != rows:
            problems.append(f"{name} sees {result['seen']} of {rows} samples")
        found.setdefault(name, []).append({"rows": rows, **result})
        sys.stderr.write(f"{rows} rows, {name}: {result['cpu_s']:.2f} s, {result['peak_bytes'] / 1e6:.0f} MB\n")
    shutil.rmtree(root)


def _operation(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(_command(*arguments), capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no words"])[-1]
        raise HsError(f"the operation {' '.join(arguments[:1])} failed: {said}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.scaling.ops", *arguments]


# -- parts


def _mover_arm(threads: int) -> Arm:
    code = "from hs_mover.cli import main; main()"
    more = ["--threads", str(threads), "--once"]
    return Arm(
        f"{threads} threads",
        lambda src, dst: [sys.executable, "-c", code, "--src", str(src), "--dst", str(dst), *more],
    )


def _parts(scratch: Path, disk: Path, found: dict[str, Any], *, quick: bool) -> None:
    """One mover from start to end over what lies there: parts by size, by number, and by its threads."""
    states = States()
    share = 0.02 if quick else 1.0
    cores = os.cpu_count() or 1

    def moved(size_bytes: int, count: int, threads: int) -> dict[str, Any]:
        src = scratch / "src"
        register(src)
        for row in range(count):
            name, pieces = part_of(states, row, rows_for(states, size_bytes))
            with (src / name).open("wb") as file:
                file.writelines(pieces)
        try:
            return move(threads)
        finally:
            shutil.rmtree(src)

    def move(threads: int) -> dict[str, Any]:
        dst = disk / "dst"
        try:
            return asdict(run_arm(_mover_arm(threads), scratch / "src", dst))
        finally:
            shutil.rmtree(dst, ignore_errors=True)

    register(scratch / "src")
    found["start"] = move(cores)
    for size_bytes in _PART_BYTES[1:3] if quick else _PART_BYTES:
        count = max(2, min(_MOST_PARTS, int(share * _MOVED_BYTES / size_bytes)))
        found.setdefault("size", []).append({"part_bytes": size_bytes, **moved(size_bytes, count, cores)})
    for count in _BACKLOGS[:2] if quick else _BACKLOGS:
        timing = moved(_BACKLOG_PART_BYTES, max(2, int(share * count)), cores)
        found.setdefault("backlog", []).append({"parts": timing["files"], **timing})
    for threads in _THREADS[:2] if quick else _THREADS:
        count = max(2, int(share * 2 * _MOVED_BYTES / 1_000_000))
        found.setdefault("threads", []).append({"threads": threads, **moved(1_000_000, count, threads)})


# -- clients


def _clients(scratch: Path, disk: Path, *, quick: bool) -> list[dict[str, Any]]:
    """Clients that take credit as fast as they can, on one scratch with a real mover."""
    found: list[dict[str, Any]] = []
    takes = 50 if quick else _TAKES
    with _mover(scratch / "shared", disk) as src:
        for count in _CLIENTS[:3] if quick else _CLIENTS:
            each = max(1, takes // count)
            running = [
                subprocess.Popen(_command("credit", str(src), str(each)), stdout=subprocess.PIPE, cwd=ROOT)
                for _ in range(count)
            ]
            results: list[dict[str, Any]] = []
            for process in running:
                said, _ = process.communicate()
                if process.returncode:
                    raise HsError(f"a client of {count} failed with {process.returncode}")
                results.append(json.loads(said))
            found.append(
                {
                    "clients": count,
                    "grants": sum(result["seen"] for result in results),
                    "cpu_s": round(sum(result["cpu_s"] for result in results), 3),
                    "seconds": max(result["seconds"] for result in results),
                }
            )
    return found


@contextmanager
def _mover(scratch: Path, disk: Path) -> Iterator[Path]:
    ControlFolder(scratch).create()
    code = "from hs_mover.cli import main; main()"
    log = disk / "mover.log"
    with log.open("wb") as output:
        mover = subprocess.Popen(
            [sys.executable, "-c", code, "--src", str(scratch), "--dst", str(disk / "dst")],
            stdout=output,
            stderr=output,
        )
    try:
        end_s = time.monotonic() + _MOVER_STARTS_S
        while (state := ControlFolder(scratch).read_mover()) is None or not state.alive(now_s()):
            if mover.poll() is not None or time.monotonic() > end_s:
                raise HsError(f"the mover did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.05)
        yield scratch
    finally:
        mover.terminate()
        mover.wait()
