"""What moving costs: parts of four sizes from tmpfs to disk, beside what people would use instead."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import NotHere
from benchmarks.mover.arms import ARMS, Arm, Timing, run_arm
from benchmarks.mover.journal import file_system, mounted_journal, sync_s
from benchmarks.mover.parts import States, part_of, register, rows_for
from benchmarks.mover.report import ON_JOURNAL, SMALL, STARTS, plot, table
from benchmarks.results import ResultFile
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "What does moving parts from tmpfs to disk cost, beside cp, zstd -1 and gzip, and one fsync per file?"

_SIZES = {"0.1 MB": 100_000, "1 MB": 1_000_000, "10 MB": 10_000_000, "90 MB": 90_000_000}
_TOTAL_BYTES = {"0.1 MB": 200_000_000, "1 MB": 200_000_000, "10 MB": 500_000_000, "90 MB": 540_000_000}
_QUICK_SHARE = 0.05
_JOURNAL_BYTES = 2 << 30

Timings = dict[str, list[dict[str, Any]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="each arm once a round (quick 1)")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"), metavar="DIR", help="on a tmpfs")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), metavar="DIR", help="made and removed below it")
    parser.add_argument(
        "--sizes", nargs="+", choices=list(_SIZES), default=list(_SIZES), metavar="SIZE", help="of parts"
    )


def _require(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise NotHere(f"{program} is not installed: the comparison needs it")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    _require("zstd", "gzip", "xargs")
    rounds = 1 if options.quick else options.rounds
    file = ResultFile("mover", options.out, quick=options.quick)
    parameters = {
        "rounds": rounds,
        "zstd": subprocess.run(["zstd", "--version"], capture_output=True, text=True, check=True).stdout.strip(),
        "disk": file_system(options.disk),
    }
    timings: dict[str, Timings] = {}
    journal: dict[str, Any] = {}
    states, problems = States(), list[str]()
    with (
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.scratch) as scratch,
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.disk) as disk,
    ):
        for label in options.sizes:
            total_bytes = int(_TOTAL_BYTES[label] * (_QUICK_SHARE if options.quick else 1.0))
            master = _make(states, Path(scratch), _SIZES[label], total_bytes)
            timings[label] = _rounds(rounds, list(ARMS), master, Path(scratch), Path(disk), problems)
            if label == SMALL:
                journal = _on_journal(rounds, master, Path(scratch), Path(disk), problems)
            shutil.rmtree(master)
            body = {"parameters": parameters, "timings": timings, "journal": journal}
            file.save(body, complete=False, problems=problems)
    body = {"parameters": parameters, "timings": timings, "journal": journal}
    path = file.save(body, complete=True, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


def _make(states: States, folder: Path, size_bytes: int, total_bytes: int) -> Path:
    master = folder / "master"
    master.mkdir()
    rows = rows_for(states, size_bytes)
    for row in range(max(2, total_bytes // size_bytes)):
        name, pieces = part_of(states, row, rows)
        with (master / name).open("wb") as file:
            file.writelines(pieces)
    return master


def _rounds(rounds: int, names: Sequence[str], master: Path, scratch: Path, disk: Path, problems: list[str]) -> Timings:
    """Each way once a round, in an order that rotates, after the starts."""
    found: Timings = {name: [] for name in (*STARTS, *names)}
    for number in range(rounds):
        for start, name in STARTS.items():
            register(scratch / "src")
            found[start].append(asdict(run_arm(ARMS[name], scratch / "src", _unused(disk))))
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            try:
                found[name].append(asdict(_once(ARMS[name], master, scratch, disk)))
            except HsError as error:
                problems.append(str(error))
    return found


def _on_journal(rounds: int, master: Path, scratch: Path, disk: Path, problems: list[str]) -> dict[str, Any]:
    """The ways that differ in their syncs, on a disk with a journal; says so where there can be none."""
    try:
        with mounted_journal(disk, _JOURNAL_BYTES) as mount:
            before_s = sync_s(mount)
            found = _rounds(rounds, ON_JOURNAL, master, scratch, mount, problems)
            return {"timings": found, "sync_s": [before_s, sync_s(mount)]}
    except NotHere as error:
        return {"not_here": str(error)}


def _unused(disk: Path) -> Path:
    return disk / f"dst-{sum(1 for _ in disk.iterdir())}"


def _once(arm: Arm, master: Path, scratch: Path, disk: Path) -> Timing:
    src = scratch / "src"
    register(src)
    files = sorted(master.iterdir())
    for path in files[: max(2, int(len(files) * arm.share))]:
        shutil.copyfile(path, src / path.name)
    try:
        return run_arm(arm, src, _unused(disk))
    finally:
        shutil.rmtree(src)
