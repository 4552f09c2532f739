"""Real server, mover and client under random kills, stops and full file systems; the independent checker after each."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import machine
from benchmarks.chaos.progress import Progress
from benchmarks.chaos.report import plot, table
from benchmarks.chaos.schedule import draw_round
from benchmarks.checkout import ROOT, use_test_support
from benchmarks.results import ResultFile
from benchmarks.tmpfs import mounted_tmpfs
from hs_formats.errors import HsError

if TYPE_CHECKING:
    from benchmarks.chaos.stage import Stage
    from checker import Reference, Report

__all__ = ["QUESTION", "add_arguments", "check", "plot", "run", "table"]

QUESTION = "Is every row there once, whole and right, whatever is killed, stopped or full meanwhile?"

_TOLERANCE = 1e-5
_LONGEST = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the schedules")
    parser.add_argument(
        "--kills", type=int, metavar="N", help="programs to be killed, all runs together (1000, quick 1)"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no round after M minutes; repeat to go on")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="(.cache/chaos/seed-N.json; quick: none)")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    use_test_support()
    target = options.kills or (1 if options.quick else 1000)
    kept = options.progress or (None if options.quick else ROOT / ".cache" / "chaos" / f"seed-{options.seed}.json")
    progress = Progress(options.seed) if kept is None else Progress.load(kept, options.seed)
    end_s = time.monotonic() + 60 * (options.minutes or 1e9)
    label = f"seed-{options.seed}"
    file = ResultFile("chaos", options.out, label=label, quick=options.quick)
    try:
        with tempfile.TemporaryDirectory(prefix="hs-chaos-", ignore_cleanup_errors=True) as folder:
            work = Path(folder)
            with (
                mounted_tmpfs(work / "s" / "scratch", "48m") as scratch,
                mounted_tmpfs(work / "d" / "dst", "96m") as dst,
            ):
                _rounds(progress, kept, target, end_s, (scratch, dst, work), quick=options.quick)
    except KeyboardInterrupt:
        pass
    parameters = {"seed": options.seed, "kills": target, "tolerance": _TOLERANCE}
    body: dict[str, Any] = {
        "label": label,
        "parameters": parameters,
        "kills": progress.kills,
        "events": progress.events,
        "endings": progress.endings,
        "rows": progress.rows,
        "orphans": progress.orphans,
        "largest_difference": progress.largest_difference,
        "rounds": progress.rounds,
        "commits": progress.commits,
    }
    path = file.save(body, complete=progress.killed >= target, problems=progress.problems)
    if progress.problems:
        raise HsError(f"{len(progress.problems)} faults, the first: {progress.problems[0]} (all in {path})")
    return path


def _rounds(
    progress: Progress, kept: Path | None, target: int, end_s: float, folders: tuple[Path, Path, Path], *, quick: bool
) -> None:
    from transformers.utils import logging

    from benchmarks.chaos.stage import BOUNDARIES, MODEL, Stage
    from checker import Reference
    from hs_server.cpu_profile import torchvision_schemas
    from tiny_models import tiny_model

    torchvision_schemas.install()  # transformers meets a CPU build of torch here
    logging.disable_progress_bar()
    scratch, dst, work = folders
    reference = Reference(tiny_model(MODEL), BOUNDARIES)
    commit = machine.commit()
    if commit not in progress.commits:
        progress.commits.append(commit)
    stage = Stage(scratch, dst, work)
    try:
        while progress.killed < target and time.monotonic() < end_s:
            _round(progress, stage, reference, quick=quick)
            if kept is not None:
                progress.save(kept)
            if progress.problems:
                break
    finally:
        stage.close()


def _round(progress: Progress, stage: Stage, reference: Reference, *, quick: bool) -> None:
    from prompt_files import mixed_rows, write_rows

    began_s = time.monotonic()
    planned = draw_round(progress.seed, len(progress.rounds), quick=quick)
    # Rows of token ids: a client that needs no tokenizer starts in a third of the time.
    seed = random.Random(f"{progress.seed}:{planned.number}:rows").randrange(1 << 30)
    made = [
        {"id": row["id"], "input_ids": list(reference.ids(row))}
        for row in mixed_rows(planned.rows, seed=seed, longest=_LONGEST)
    ]
    prompts = write_rows(stage.work / f"round-{planned.number}.jsonl", made)
    stage.kills.clear()
    stage.endings.clear()
    events: Counter[str] = Counter()
    stage.begin(planned, prompts)
    for event in planned.events:
        if not stage.wait_for(event):
            break
        stage.play(event)
        events[event.kind] += 1
    stage.finish()
    dataset = stage.dst / prompts.stem
    report, problems = check(dataset, prompts, reference, planned.number)
    problems = [*stage.problems, *problems]
    progress.add(
        kills=stage.kills, events=events, endings=stage.endings, rows=report.rows, orphans=len(report.orphans),
        largest=report.largest, seconds=time.monotonic() - began_s, problems=problems,
    )  # fmt: skip
    sys.stderr.write(
        f"round {planned.number}: {sum(stage.kills.values())} killed, {progress.killed} in all; "
        f"{report.good} of {report.rows} rows right, {len(report.orphans)} orphans, {len(problems)} faults, "
        f"{time.monotonic() - began_s:.0f} s\n"
    )
    if problems:
        _keep(stage, dataset, prompts)
    else:
        shutil.rmtree(dataset)
        for path in (prompts, *stage.logs()):
            path.unlink()


def check(dataset: Path, prompts: Path, reference: Reference, number: int) -> tuple[Report, list[str]]:
    """The independent checker's report of a round, and each of its faults as a line.

    A part in quarantine is a fault too: the client sends its row again, and yet nothing that happens in a round may
    let a part appear that is not whole.
    """
    from checker import check_dataset

    report = check_dataset(dataset, prompts, reference, max_abs=_TOLERANCE)
    faults = [f"round {number}: {kind}: {line}" for kind, found in report.faults.items() for line in found]
    quarantined = sorted(path for path in (dataset / "quarantine").rglob("*") if path.is_file())
    faults += [f"round {number}: quarantined: {path.name}" for path in quarantined]
    if not faults and report.good != report.rows:
        faults.append(f"round {number}: {report.good} of {report.rows} rows are right")
    return report, faults


def _keep(stage: Stage, dataset: Path, prompts: Path) -> None:
    """What is needed to see what went wrong, where it outlives the run."""
    kept = Path(tempfile.mkdtemp(prefix="hs-chaos-fault-"))
    shutil.copytree(dataset, kept / dataset.name, dirs_exist_ok=True)
    for path in (prompts, *stage.logs(), *stage.work.glob("server-*.log*")):
        shutil.copy(path, kept)
    sys.stderr.write(f"kept in {kept}\n")
