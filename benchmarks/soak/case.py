"""A producer twice as fast as the mover, under the real admission rule; throttles that the codec must answer; and the
whole chain, watched for memory.

With ``--only`` a part is a result of its own, so that a long soak may be had part by part.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.checkout import use_test_support
from benchmarks.mover.parts import register
from benchmarks.results import ResultFile
from benchmarks.soak.producer import Producer
from benchmarks.soak.report import plot, table
from benchmarks.soak.running import Observed, check_stored
from benchmarks.soak.throttle import throttle
from benchmarks.tmpfs import mounted_tmpfs
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = (
    "Does scratch stay below its mark for long under a fast producer? Does the codec adapt? Does any program grow?"
)

_DRAIN_BYTES_S = 30_000_000
_ROWS = (200, 3500)
"""Tokens of a record: 1 to 16 MB."""

_STEP_TIMEOUT_S = 120.0
_CPU_CORES = 0.35
_DISK_BYTES_S = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--seconds", type=float, metavar="S", help="how long the soak lasts (600, quick 60)")
    parser.add_argument("--size", default="1g", metavar="SIZE", help="of the tmpfs, as mount takes it")
    parser.add_argument("--disk", type=Path, default=Path.cwd(), metavar="DIR", help="made and removed below it")
    parser.add_argument("--only", choices=["soak", "throttles", "chain"], help="one part of it, as a result of its own")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    seconds = options.seconds or (60.0 if options.quick else 600.0)
    label = options.only or ""
    file = ResultFile("soak", options.out, label=label, quick=options.quick)
    body: dict[str, Any] = {
        "label": label,
        "parameters": {"seconds": seconds, "tmpfs": options.size, "drain_bytes_per_s": _DRAIN_BYTES_S},
    }
    problems: list[str] = []

    def chain(scratch: Path, disk: Path, seconds: float, problems: list[str]) -> dict[str, Any]:
        use_test_support()
        from benchmarks.soak.chain import run_chain

        def keep(memory: dict[str, list[list[float]]]) -> None:
            """So that an hour that is cut short still shows what it saw."""
            file.save(body | {"chain": {"memory": memory, "growth": []}}, complete=False, problems=problems)

        return run_chain(scratch, disk, seconds, problems, keep)

    for name, part in (("soak", _soak), ("throttles", _throttles), ("chain", chain)):
        if options.only in (None, name):
            with _folders(options) as (scratch, disk):
                body[name] = part(scratch, disk, seconds, problems)
            file.save(body, complete=False, problems=problems)
    path = file.save(body, complete=True, problems=problems)
    if problems:
        raise HsError(f"the run is invalid, {len(problems)} problems, the first: {problems[0]} (all in {path})")
    return path


@contextmanager
def _folders(options: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    with (
        tempfile.TemporaryDirectory(prefix="hs-bench-", dir=options.disk) as disk,
        mounted_tmpfs(Path(disk) / "scratch" / "tmpfs", options.size) as scratch,
    ):
        register(scratch)
        yield scratch, Path(disk)


def _soak(scratch: Path, disk: Path, seconds: float, problems: list[str]) -> dict[str, Any]:
    dst, log = disk / "dst", disk / "log"
    mover = Observed(scratch, dst, log, "--limit-rate", str(_DRAIN_BYTES_S))
    with mover:
        producer = Producer(scratch, bytes_per_s=2 * _DRAIN_BYTES_S, rows=_ROWS)
        with producer:
            time.sleep(seconds)
        if not mover.drained(120):
            problems.append("scratch was not drained")
    limit = max(sample[2] for sample in mover.samples)
    peak = max(producer.peak_bytes, mover.peak_bytes)
    if peak > limit + producer.largest_bytes:
        problems.append(f"fill of {peak} bytes is above the mark of {limit} and one record of {producer.largest_bytes}")
    problems += _finish(mover, producer, dst)
    return {
        "samples": mover.samples,
        "codecs": mover.codecs,
        "limit_bytes": limit,
        "peak_bytes": peak,
        "largest_record_bytes": producer.largest_bytes,
        "parts": len(producer.written),
    }


def _throttles(scratch: Path, disk: Path, seconds: float, problems: list[str]) -> dict[str, Any]:
    del seconds
    dst, log = disk / "dst", disk / "log"
    phases: list[dict[str, Any]] = []
    with throttle(disk) as limits:
        mover = Observed(scratch, dst, log, wrap=limits.wrap)

        def phase(name: str, begin: Callable[[], None], words: str) -> None:
            """Until the mover says `words` once more; it may say nothing else of its codec meanwhile."""
            before, others = mover.said(words), mover.said("codec ")
            began_s = mover.elapsed_s
            begin()
            while mover.said(words) == before and mover.elapsed_s - began_s < _STEP_TIMEOUT_S:
                time.sleep(0.25)
            if mover.said(words) == before:
                problems.append(f"{name}: the mover did not say {words!r} within {_STEP_TIMEOUT_S:.0f} s")
            elif mover.said("codec ") != others + 1:
                problems.append(f"{name}: the codec changed {mover.said('codec ') - others} times")
            phases.append({"name": name, "from_s": round(began_s, 1), "to_s": round(mover.elapsed_s, 1)})

        with mover:
            producer = Producer(scratch, bytes_per_s=None, rows=_ROWS)
            with producer:
                phase("CPU throttled", lambda: limits.cpu(_CPU_CORES), "codec fast instead of default: parts pile up")

                def disk_instead() -> None:
                    limits.disk(_DISK_BYTES_S)
                    limits.cpu(None)

                phase("disk throttled", disk_instead, "codec default instead of fast: the disk is the limit")
                changes, began_s = mover.said("codec "), mover.elapsed_s
                time.sleep(20.0)  # parts pile up all the same, and the codec must stay
                phases.append({"name": "still", "from_s": round(began_s, 1), "to_s": round(mover.elapsed_s, 1)})
                if mover.said("codec ") != changes:
                    problems.append("the codec changed again although the disk was the limit")

                def cpu_again() -> None:
                    limits.cpu(_CPU_CORES)
                    limits.disk(None)

                phase("CPU throttled again", cpu_again, "codec fast instead of default: parts pile up")

                def ease() -> None:
                    limits.cpu(None)
                    producer.set_rate(3_000_000)

                phase("little to do", ease, "codec default instead of fast: the encoders have time")
            if not mover.drained(180):
                problems.append("scratch was not drained")
        problems += _finish(mover, producer, dst)
    said = [line["message"] for line in mover.lines() if line["message"].startswith("codec ")]
    return {
        "samples": mover.samples, "codecs": mover.codecs, "phases": phases, "said": said, "parts": len(producer.written)
    }  # fmt: skip


def _finish(mover: Observed, producer: Producer, dst: Path) -> list[str]:
    loud = [line["message"] for line in mover.lines() if line["level"] not in ("info", "debug")]
    problems = [*producer.errors, *(f"the mover said: {message}" for message in loud)]
    if mover.exit_code:
        problems.append(f"the mover ended with {mover.exit_code}")
    return problems + check_stored(dst / "bench", producer.written)
