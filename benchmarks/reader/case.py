"""How fast samples come out of a dataset, beside plain files that trainers load."""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.reader.report import plot, table
from benchmarks.results import ResultFile
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "How fast are samples read from a dataset, beside torch.load of .pt and .ckpt.gz files?"


class NotEnoughRoom(HsError):
    """{folder} has {free_gb:.1f} GB free, and the samples need {need_gb:.1f} GB: name another with --work"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--samples", type=int, metavar="N", help="how many (24, quick 4)")
    parser.add_argument("--rounds", type=int, metavar="N", help="how often all are read (9, quick 1)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where to make the files")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    from benchmarks.reader.measure import measure

    shape = (64, 4, 512) if options.quick else (512, 4, 4096)
    count = options.samples or (4 if options.quick else 24)
    rounds = options.rounds or (1 if options.quick else 9)
    file = ResultFile("reader", options.out, quick=options.quick)
    need_bytes = 6 * count * 2 * shape[0] * shape[1] * shape[2]
    with tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.work) as work:
        free = shutil.disk_usage(work).free
        if free < need_bytes:
            raise NotEnoughRoom(folder=work, free_gb=free / 1e9, need_gb=need_bytes / 1e9)
        found: dict[str, Any] = measure(Path(work), ROOT / "tests" / "samples", count=count, shape=shape, rounds=rounds)
    problems: list[str] = found.pop("problems")
    plain = statistics.median(found["arms"]["ckpt.gz"]["cpu_s"])
    if not options.quick and statistics.median(found["arms"]["default"]["cpu_s"]) > plain:
        problems.append("the codec default is read slower than .ckpt.gz")
    parameters = {"samples": count, "rounds": rounds, "shape": shape}
    # CPU time of this process: other users of the machine matter little for it.
    body = {"parameters": parameters, "times_mean_something": not options.quick, **found}
    return file.save(body, complete=True, problems=problems)
