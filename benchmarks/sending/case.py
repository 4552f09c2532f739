"""Memory of the client, and its processor time a row, over a run of very many tiny rows that are all sent."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from benchmarks.processes import anonymous_mib, cpu_s
from benchmarks.results import ResultFile
from benchmarks.sending.report import plot, table, tenths
from hs_formats.errors import HsError

__all__ = ["QUESTION", "add_arguments", "plot", "run", "table"]

QUESTION = "Does the client's memory, or its work a row, grow with the rows that it has sent?"

_SAMPLE_S = 1.0
_KEPT_SAMPLES = 600
_IDS = 16
_DATASET = "prompts"
_KEPT_FACTS = ("samples", "seconds", "requests", "retried", "latency_p50_s", "latency_p95_s")


@dataclass(frozen=True, slots=True)
class Sample:
    """The client at one moment: requests that came, its processor seconds, its anonymous memory."""

    at_s: float
    sent: int
    cpu_s: float
    mib: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `benchmarks.cases.Case`."""
    parser.add_argument("--rows", type=int, metavar="N", help="to send (1000000, quick 2000)")
    parser.add_argument("--concurrency", type=int, default=64, metavar="N", help="requests in flight")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where the files are made  [default: a new folder]")


def run(options: argparse.Namespace) -> Path:
    """See `benchmarks.cases.Case`."""
    count = options.rows or (2_000 if options.quick else 1_000_000)
    file = ResultFile("sending", options.out, label=f"{count}", quick=options.quick)
    parameters = {"rows": count, "ids": _IDS, "concurrency": options.concurrency}
    work = Path(tempfile.mkdtemp(prefix="hs-sending-", dir=options.work))
    try:
        measured = _measure(work, count, options.concurrency)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    done = measured["summary"]["samples"]["done"]
    problems = [] if (measured["exit_code"], done) == (0, count) else [f"{done} of {count} rows are done"]
    return file.save({"label": f"{count}", "parameters": parameters, **measured}, complete=True, problems=problems)


def _measure(work: Path, count: int, concurrency: int) -> dict[str, Any]:
    prompts, scratch, dst = work / f"{_DATASET}.jsonl", work / "scratch", work / "dst"
    scratch.mkdir(mode=0o700)
    dst.mkdir()
    with prompts.open("w", buffering=1 << 20) as output:
        for at in range(count):
            row = {"id": f"row-{at}", "input_ids": [(at + 7 * j) % 5000 for j in range(_IDS)]}
            output.write(json.dumps(row) + "\n")
    with _stub(scratch, dst) as port:
        where = ["--server", f"http://127.0.0.1:{port}", "--scratch", str(scratch)]
        command = [str(Path(sys.executable).with_name("hs-client")), "run", str(prompts), *where, "--no-doctor"]
        command += ["--force", "--concurrency", str(concurrency), "--summary-json", str(work / "summary.json")]
        log = work / "client.log"
        load = os.getloadavg()[0]
        with log.open("w") as output:
            client = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            samples = list(_watched(client, port))
        finally:
            client.kill()
            client.wait()
        if not (work / "summary.json").exists():
            raise HsError(f"the client did not finish: {log.read_text()[-2000:]}")
    summary = json.loads((work / "summary.json").read_bytes())
    step = max(1, -(-len(samples) // _KEPT_SAMPLES))
    return {
        "exit_code": client.returncode,
        "load_average": round(load, 1),
        "summary": {name: summary[name] for name in _KEPT_FACTS},
        "ledger_bytes": sum(path.stat().st_size for path in (dst / _DATASET / "ledger").iterdir()),
        "tenths": [asdict(tenth) for tenth in tenths([(s.at_s, s.sent, s.cpu_s, s.mib) for s in samples], count)],
        "samples": [[s.at_s, s.sent, s.cpu_s, s.mib] for s in samples[::step]],
    }


def _watched(client: subprocess.Popen[bytes], port: int) -> Iterator[Sample]:
    """Samples until the client ends."""
    began_s = time.monotonic()
    while True:
        mib, used_s = anonymous_mib(client.pid), cpu_s(client.pid)
        if mib:  # 0 when it has just ended
            yield Sample(round(time.monotonic() - began_s, 2), _requests(port), used_s, mib)
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(_SAMPLE_S)
            return


def _requests(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/count")
        return int(json.loads(connection.getresponse().read())["count"])
    finally:
        connection.close()


@contextlib.contextmanager
def _stub(scratch: Path, dst: Path) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    line = [sys.executable, "-m", "benchmarks.sending.stub", str(scratch), str(dst), _DATASET, str(port)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, cwd=ROOT) as stub:
        try:
            if stub.stdout is None or not stub.stdout.readline():
                raise HsError("the stub server does not start")
            yield port
        finally:
            stub.kill()
