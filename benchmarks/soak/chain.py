"""A real server, mover and client for a long time, watched for memory. Needs `tests/support` on the import path."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.stall.watch import growth, resident_bytes
from chain import Server, command, launch_server, running_mover, start_client
from tiny_models import tiny_model

__all__ = ["run_chain"]

_DATASET = "soak"
_ROWS_PER_S = 300
"""More than tiny-llama does on a CPU, so that work never ends."""

_TOKENS = (1, 40)
_SAMPLES = 600
_JUDGED_FROM_S = 600.0
_GROWTH_BYTES = 32_000_000
"""Allowed from the second to the last sixth of a run of `_JUDGED_FROM_S` or more."""

_END_S = 300.0
_KEEP_EVERY_S = 60.0

Memory = dict[str, list[list[float]]]
"""Samples [seconds, bytes] by process, called by its pid and its name."""


def run_chain(
    scratch: Path, disk: Path, seconds: float, problems: list[str], keep: Callable[[Memory], None]
) -> dict[str, Any]:
    """Send rows for `seconds`, then interrupt the client, drain, and verify what is there.

    Args:
        problems: what must not happen is added here.
        keep: given the samples of memory every minute.

    Returns:
        ``memory``: samples [seconds, bytes] by process; ``growth``: as `growth`, with the process's name; ``done``.
    """
    dst, log = disk / "dst", disk / "client.log"
    dst.mkdir()
    prompts = _write_prompts(disk / f"{_DATASET}.jsonl", int(seconds * _ROWS_PER_S) + 1000)
    sglang = ["--chunked-prefill-size", "16"]
    server, _ = launch_server(tiny_model("tiny-llama"), scratch, disk / "server", sglang=sglang)
    try:
        with running_mover(scratch, dst, disk) as mover:
            client = start_client(prompts, server, log, "--dataset", _DATASET, "--concurrency", "16")
            try:
                named = {pid: f"server: {_title(pid)}" for pid in _server_pids(server)}
                named |= {mover.process.pid: "mover", client.pid: "client"}
                alive = {"mover": mover.process, "client": client}
                memory = _watch(named, alive, seconds, problems, keep)
                client.send_signal(signal.SIGINT)
                if (code := client.wait(_END_S)) != 130:
                    problems.append(f"the client ended with {code} instead of 130: …{_last_words(log)}")
            finally:
                client.kill()
                client.wait()
            end_s = time.monotonic() + _END_S
            while server.parts() and mover.process.poll() is None and time.monotonic() < end_s:
                time.sleep(0.2)
            if mover.process.poll() is not None:
                problems.append(f"the mover had ended: …{_last_words(mover.log)}")
            if server.parts():
                problems.append("scratch was not drained")
    finally:
        server.stop()
    return {"memory": memory, "growth": _judged(memory, seconds, problems), "done": _verified(dst, problems)}


def _write_prompts(path: Path, count: int) -> Path:
    draw = random.Random(0)
    with path.open("w", encoding="ascii") as file:
        for number in range(count):
            ids = [draw.randrange(3, 500) for _ in range(draw.randint(*_TOKENS))]
            file.write(json.dumps({"id": f"r{number}", "input_ids": ids}) + "\n")
    return path


def _last_words(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace").strip()[-500:]


def _server_pids(server: Server) -> list[int]:
    group = os.getpgid(server.scheduler_pids()[0])
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getpgid(int(entry.name)) == group:
                    found.append(int(entry.name))
            except ProcessLookupError:
                continue
    return sorted(found)


def _title(pid: int) -> str:
    line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    for name in ("launch_server", "sglang_main", "resource_tracker"):
        if name in line:
            return name.replace("_", " ")
    return line.split()[0][:40] if line.strip() else "?"


def _watch(
    named: dict[int, str],
    alive: Mapping[str, subprocess.Popen[bytes]],
    seconds: float,
    problems: list[str],
    keep: Callable[[Memory], None],
) -> Memory:
    memory: Memory = {f"{pid} {name}": [] for pid, name in named.items()}
    began_s = time.monotonic()
    kept_s = 0.0
    while (at_s := time.monotonic() - began_s) < seconds:
        for pid, name in named.items():
            if (size := resident_bytes(pid)) is not None:
                memory[f"{pid} {name}"].append([round(at_s, 1), size])
        if at_s - kept_s > _KEEP_EVERY_S:
            kept_s = at_s
            keep(memory)
        ended = {name: code for name, process in alive.items() if (code := process.poll()) is not None}
        if ended:
            problems += [f"the {name} ended with {code} after {at_s:.0f} s" for name, code in ended.items()]
            break
        time.sleep(max(0.25, seconds / _SAMPLES))
    return {name: rows for name, rows in memory.items() if rows}


def _judged(memory: Memory, seconds: float, problems: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for key, rows in memory.items():
        pid, _, name = key.partition(" ")
        (grown,) = growth({pid: rows})
        found.append({**grown, "name": name})
        if seconds >= _JUDGED_FROM_S and grown["grown_bytes"] > _GROWTH_BYTES:
            problems.append(f"{name} grew by {grown['grown_bytes']} bytes")
    return found


def _verified(dst: Path, problems: list[str]) -> int:
    """Samples done; `hs-client verify` finds nothing wrong with them."""
    dataset = dst / _DATASET
    argv = [command("hs-client"), "verify", str(dataset)]
    verified = subprocess.run(argv, capture_output=True, text=True, check=False)
    if verified.returncode:
        problems.append(f"verify: exit {verified.returncode}: {(verified.stderr or verified.stdout).strip()[-300:]}")
    return sum(path.read_bytes().count(b'"type":"done"') for path in (dataset / "ledger").glob("*.jsonl"))
