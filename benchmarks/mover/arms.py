"""The ways to get files from tmpfs to disk, each as a command, run and timed with all its children."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkout import ROOT
from hs_formats.errors import HsError

__all__ = ["ARMS", "Arm", "Timing", "run_arm"]

_FOLDERS = ("formats", "server_launch", "mover", "client")
_SHELL = {
    "zstd -1 -T2, mv": (
        'mkdir "$2/.part" && find "$1" -name "*.pt" -print0 '
        '| xargs -0 zstd -1 -T2 -q --rm --output-dir-flat "$2/.part" '
        '&& find "$2/.part" -type f -print0 | xargs -0 mv -t "$2" && rmdir "$2/.part" && sync -f "$2"'
    ),
    "cp": 'find "$1" -name "*.pt" -print0 | xargs -0 cp -t "$2" && sync -f "$2" && find "$1" -name "*.pt" -delete',
    "gzip, mv": (
        'find "$1" -name "*.pt" -print0 | xargs -0 gzip -q && find "$1" -name "*.gz" -print0 | xargs -0 mv -t "$2" '
        '&& sync -f "$2"'
    ),
}


@dataclass(frozen=True, slots=True)
class Arm:
    """`share` of the files is given to slow ones only."""

    name: str
    command: Callable[[Path, Path], list[str]]
    share: float = 1.0


def _mover(codec: str) -> Callable[[Path, Path], list[str]]:
    def command(src: Path, dst: Path) -> list[str]:
        code = "from hs_mover.cli import main; main()"
        return [sys.executable, "-c", code, "--src", str(src), "--dst", str(dst), "--codec", codec, "--once"]

    return command


def _shell(name: str) -> Callable[[Path, Path], list[str]]:
    return lambda src, dst: ["sh", "-c", _SHELL[name], "sh", str(src), str(dst)]


def _one_by_one(src: Path, dst: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.mover.one_by_one", str(src), str(dst)]


def _grouped(src: Path, dst: Path) -> list[str]:
    return [*_one_by_one(src, dst), "--grouped"]


ARMS: Mapping[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("hs-mover default", _mover("default")),
        Arm("hs-mover fast", _mover("fast")),
        Arm("hs-mover none", _mover("none")),
        *(Arm(name, _shell(name), 0.03 if name.startswith("gzip") else 1.0) for name in _SHELL),
        Arm("one fsync per file", _one_by_one),
        Arm("the same, in groups", _grouped),
    )
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One run of one arm. `cpu_s` is user and system time of its processes, without threads of the kernel's own."""

    files: int
    raw_bytes: int
    stored_bytes: int
    wall_s: float
    cpu_s: float


def run_arm(arm: Arm, src: Path, dst: Path) -> Timing:
    """Move all parts of `src` to `dst`, a new folder.

    Raises:
        HsError: it failed, or did not move all.
    """
    parts = list(src.glob("*.pt"))
    raw_bytes = sum(path.stat().st_size for path in parts)
    dst.mkdir(parents=True)
    path = os.pathsep.join([str(ROOT), *(str(ROOT / name) for name in _FOLDERS)])
    os.sync()
    began = time.monotonic()
    process = subprocess.Popen(arm.command(src, dst), env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read().decode(errors="replace")
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.monotonic() - began
    process.stderr.close()
    stored = [found for found in dst.rglob("*.pt*") if found.is_file()]
    left = len(list(src.glob("*.pt*")))
    if process.returncode or len(stored) != len(parts) or left:
        raise HsError(
            f"{arm.name}: exit {process.returncode}, {len(stored)} of {len(parts)} files stored, {left} left: "
            f"{said[-500:]}"
        )
    timing = Timing(
        len(parts), raw_bytes, sum(found.stat().st_size for found in stored), wall_s, usage.ru_utime + usage.ru_stime
    )
    for done in stored:  # to delete them would slow down who makes files next: see the README
        os.truncate(done, 0)
    return timing
