"""What it costs to send parts from tmpfs into a bucket, beside rclone."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.checkout import use_test_support
from benchmarks.machine import NotHere
from benchmarks.mover.parts import States, part_of, register, rows_for
from benchmarks.objectstore.arms import ARMS, START, run_arm
from benchmarks.objectstore.report import plot, table
from benchmarks.results import ResultFile
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "What does sending parts from tmpfs into a bucket cost, beside rclone?"

_SIZES = {"1 MB": 1_000_000, "10 MB": 10_000_000, "60 MB": 60_000_000}
_TOTAL_BYTES = {"1 MB": 100_000_000, "10 MB": 200_000_000, "60 MB": 240_000_000}
_QUICK_SHARE = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="each way once a round (quick 1)")
    parser.add_argument("--scratch", type=Path, default=Path("/dev/shm"), metavar="DIR", help="on a tmpfs")
    parser.add_argument(
        "--sizes", nargs="+", choices=list(_SIZES), default=list(_SIZES), metavar="SIZE", help="of parts"
    )


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    rclone = shutil.which("rclone")
    if rclone is None:
        raise NotHere("rclone is not installed: the comparison needs it (apt-get install rclone)")
    use_test_support()
    from object_servers import moto_server

    rounds = 1 if options.quick else options.rounds
    file = ResultFile("objectstore", options.out, quick=options.quick)
    version = subprocess.run([rclone, "version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    parameters = {"rounds": rounds, "rclone": version, "server": "moto, a process on the same cores"}
    timings: dict[str, dict[str, list[dict[str, Any]]]] = {}
    states, problems = States(), list[str]()
    with moto_server() as server, tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.scratch) as scratch:
        os.environ.update(server.environment())
        src = Path(scratch) / "src"
        for label in options.sizes:
            total_bytes = int(_TOTAL_BYTES[label] * (_QUICK_SHARE if options.quick else 1.0))
            count = max(2, total_bytes // _SIZES[label])
            parts = [
                (name, b"".join(pieces))
                for name, pieces in (part_of(states, row, rows_for(states, _SIZES[label])) for row in range(count))
            ]
            found = timings[label] = {name: [] for name in (START, *ARMS)}
            for number in range(rounds):
                names = [START, *ARMS]
                for name in names[number % len(names) :] + names[: number % len(names)]:
                    register(src)
                    for part, data in parts if name != START else []:
                        (src / part).write_bytes(data)
                    try:
                        found[name].append(
                            asdict(run_arm("hs-mover default" if name == START else name, src, server.bucket))
                        )
                    except HsError as error:
                        problems.append(str(error))
                    shutil.rmtree(src)
            file.save({"parameters": parameters, "timings": timings}, complete=False, problems=problems)
    # The senders' CPU time means something here; the server shares the cores, so that time does not.
    body = {"parameters": parameters, "times_mean_something": not options.quick, "timings": timings}
    path = file.save(body, complete=True, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path
