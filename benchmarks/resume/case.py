"""Time to the first request, and memory, of a run over a very large prompts file: new, and resumed with most done."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import anonymous_mib, cpu_s
from benchmarks.results import ResultFile
from benchmarks.resume.made import RUN, save_tokenizer, write_ledger, write_prompts
from benchmarks.resume.report import plot, table
from benchmarks.resume.stub import Stub, serving
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import HsError, ServerLost

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "How long until a run over a million rows sends its first request, new and resumed, and in how much memory?"

_SAMPLE_S = 0.25
_TIMEOUT_S = 1800.0
_MOVER_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--rows", type=int, metavar="N", help="of the prompts file (1000000, quick 6000)")
    parser.add_argument("--kind", choices=["chat", "ids"], default="chat", help="of the rows")
    parser.add_argument("--tokens", type=int, default=200, metavar="N", help="of a row")
    parser.add_argument("--done", type=float, default=0.99, metavar="F", help="part of the rows that is done")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the files are made  [default: a new folder]")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    count = options.rows or (6_000 if options.quick else 1_000_000)
    done = int(options.done * count)
    parameters = {"rows": count, "kind": options.kind, "tokens": options.tokens, "done": done}
    label = f"{options.kind}-{options.tokens}"
    file = ResultFile("resume", options.out, label=label, quick=options.quick)
    body: dict[str, Any] = {"label": label, "parameters": parameters, "runs": {}}
    work = Path(tempfile.mkdtemp(prefix="hs-resume-", dir=options.work))
    try:
        _measure(work, body, count, done, options)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return file.save(body, complete=True, problems=[])


def _measure(work: Path, body: dict[str, Any], count: int, done: int, options: argparse.Namespace) -> None:
    prompts, tokenizer = work / "prompts.jsonl", work / "tokenizer"
    save_tokenizer(tokenizer)
    write_prompts(prompts, count, kind=options.kind, tokens=options.tokens)
    body["parameters"]["prompts_bytes"] = prompts.stat().st_size
    paths = DatasetPaths(work / "dst" / "prompts")
    with _mover(work) as scratch, serving(scratch, tokenizer) as stub:
        body["runs"]["new"] = _first_request(work, prompts, scratch, stub)
        _forget_runs(paths, scratch)
        write_ledger(paths.ledger_file(RUN), prompts, done, tokens=options.tokens)
        body["parameters"]["ledger_bytes"] = paths.ledger_file(RUN).stat().st_size
        body["parameters"]["cache_bytes"] = sum(path.stat().st_size for path in paths.root.glob(".rows-*"))
        body["runs"]["resumed"] = _first_request(work, prompts, scratch, stub)
        _forget_runs(paths, scratch, keep=RUN)
        for cache in paths.root.glob(".rows-*"):
            cache.unlink()
        body["runs"]["resumed without the cache of rows"] = _first_request(work, prompts, scratch, stub)


def _forget_runs(paths: DatasetPaths, scratch: Path, *, keep: str = "") -> None:
    """Take away the ledgers of the runs that were killed here, so that none of their requests is waited for."""
    for path in paths.ledger.glob("*.jsonl"):
        if path.stem != keep:
            path.unlink()
    for path in (scratch / ".hs" / "clients").glob("*"):
        path.unlink()


def _first_request(work: Path, prompts: Path, scratch: Path, stub: Stub) -> dict[str, Any]:
    """Start the client, watch it until its first request comes, and kill it.

    Raises:
        ServerLost: it ended before.
    """
    stub.expect()
    log = work / "client.log"
    command = [str(Path(sys.executable).with_name("hs-client")), "run", str(prompts), "--no-doctor", "--force"]
    where = ["--server", f"http://127.0.0.1:{stub.port}", "--scratch", str(scratch)]
    memory: list[tuple[float, float]] = []
    with log.open("w") as output:
        load = os.getloadavg()[0]
        started_s = time.monotonic()
        client = subprocess.Popen([*command, *where], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            while not stub.came.wait(_SAMPLE_S):
                spent_s = time.monotonic() - started_s
                if client.poll() is not None or spent_s > _TIMEOUT_S:
                    raise ServerLost(f"no request came: {log.read_text()[-2000:]}")
                memory.append((round(spent_s, 2), anonymous_mib(client.pid)))
            first_s = stub.first_s
            used_s = cpu_s(client.pid)
        finally:
            client.kill()
            client.wait()
    lines = [line for line in log.read_text().splitlines() if line.startswith(("rows", "plan", "time", "space"))]
    peak = max((mib for _, mib in memory), default=0.0)
    return {
        "first_request_s": round(first_s - started_s, 2),
        "cpu_s": used_s,
        "load_average": round(load, 1),
        "peak_mib": peak,
        "memory_samples": memory,
        "said": lines,
    }


@contextlib.contextmanager
def _mover(work: Path) -> Iterator[Path]:
    scratch, dst = work / "scratch", work / "dst"
    scratch.mkdir(mode=0o700)
    dst.mkdir()
    command = [str(Path(sys.executable).with_name("hs-mover")), "--src", str(scratch), "--dst", str(dst)]
    with (work / "mover.log").open("w") as output:
        mover = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        end = time.monotonic() + _MOVER_S
        while not (scratch / ".hs" / "mover.json").exists():
            if mover.poll() is not None or time.monotonic() > end:
                raise HsError(f"the mover did not start: {(work / 'mover.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield scratch
    finally:
        mover.terminate()
        mover.wait()
