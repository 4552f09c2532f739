"""What a result must say about where it was made: machine, GPU, versions, commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT
from hs_formats.errors import PreflightError

__all__ = ["NotHere", "commit", "describe", "gpus", "machine_name", "versions"]

_PACKAGES = ("hs-extract", "sglang", "torch", "triton", "transformers", "sglang-kernel", "numpy", "httpx")


class NotHere(PreflightError):
    """{message}"""  # something that this machine lacks; `run all` skips the case and says so


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False, cwd=ROOT)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs; empty on a machine without."""
    return _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()


def machine_name() -> str:
    """Short name for file names: ``h200``, ``h200x2``, ``cpu2``."""
    found = gpus()
    if not found:
        return f"cpu{os.cpu_count()}"
    model = found[0].removeprefix("NVIDIA ").split()[0].lower()
    return model if len(found) == 1 else f"{model}x{len(found)}"


def versions() -> dict[str, str]:
    """Versions of what matters to a measurement; what is not installed is left out."""
    found: dict[str, str] = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The checkout's commit, with ``+changes`` where files differ; ``$HS_BENCH_COMMIT`` where there is no git."""
    found = _output("git", "rev-parse", "HEAD")
    if not found:
        return os.environ.get("HS_BENCH_COMMIT", "unknown")
    changed = _output("git", "status", "--porcelain", "--untracked-files=no", "--", "formats", "server_launch")
    return found + ("+changes" if changed else "")


def describe() -> dict[str, Any]:
    """Machine, for the result file."""
    memory = next(
        (
            line.split()[1]
            for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
            if "MemTotal" in line
        ),
        "0",
    )
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "name": machine_name(),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_bytes": int(memory) * 1024,
        "gpus": gpus(),
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        "kernel": platform.release(),
    }
