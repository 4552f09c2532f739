"""A mover process under observation: its state four times a second, its log, and what it stored in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.checkout import program, program_environment
from hs_formats.control import ControlFolder, used_bytes
from hs_formats.manifest import ManifestReader

__all__ = ["Observed", "check_stored"]

_SAMPLE_S = 0.25


class Observed:
    """`hs-mover` on `scratch` while the block runs; ended with SIGTERM, which must exit 0.

    Attributes:
        samples: [seconds, fill, limit, backlog, rate out, index of the codec in `codecs`] of each look.
        codecs: names, in the order in which they were seen.
        peak_bytes: largest fill of all looks.
    """

    def __init__(self, scratch: Path, dst: Path, log: Path, *options: str, wrap: Any = list) -> None:
        self.samples: list[list[float]] = []
        self.codecs: list[str] = []
        self.peak_bytes = 0
        self.exit_code: int | None = None
        self._scratch = scratch
        self._control = ControlFolder(scratch)
        self._log = log
        arguments = ["--src", str(scratch), "--dst", str(dst), "--log-format", "json", *options]
        self._command: list[str] = wrap([*program("hs_mover"), *arguments])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")
        self._began_s = 0.0

    def __enter__(self) -> Self:
        with self._log.open("ab") as file:
            self._process = subprocess.Popen(self._command, env=program_environment(), stderr=file)
        while self._control.read_mover() is None and self._process.poll() is None:
            time.sleep(0.05)
        self._began_s = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self.exit_code = self._process.wait(120)

    @property
    def elapsed_s(self) -> float:
        """Since the mover's first heartbeat."""
        return time.monotonic() - self._began_s

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far."""
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]

    def said(self, words: str) -> int:
        """How many of its log lines hold `words`."""
        return sum(words in line["message"] for line in self.lines())

    def drained(self, timeout_s: float) -> bool:
        """Wait until scratch is empty."""
        end_s = time.monotonic() + timeout_s
        while any(name != ".hs" for name in os.listdir(self._scratch)):
            if time.monotonic() > end_s or self._process.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            state = self._control.read_mover()
            if state is None:
                continue
            if state.codec not in self.codecs:
                self.codecs.append(state.codec)
            used = used_bytes(os.statvfs(self._scratch))
            self.peak_bytes = max(self.peak_bytes, used)
            self.samples.append(
                [round(self.elapsed_s, 2), used, state.limit_bytes, state.backlog_bytes,
                 round(state.out_bytes_per_s), self.codecs.index(state.codec)]
            )  # fmt: skip


def check_stored(dataset: Path, written: Mapping[str, str]) -> list[str]:
    """What is wrong with what was stored, beside xxh3 of each part by name."""
    lines = ManifestReader(dataset / "manifest").poll()
    problems = [f"{line.part} is {line.status}: {line.reason}" for line in lines if line.status != "stored"]
    problems += [f"{line.part} was altered" for line in lines if written.get(line.part) not in (None, line.xxh3)]
    found = {line.part for line in lines}
    problems += [f"{name} is missing" for name in written if name not in found]
    problems += [f"{name} was never written" for name in found if name not in written]
    files = sum(1 for path in (dataset / "data").rglob("*") if path.is_file())
    if files != len(written):
        problems.append(f"{files} files for {len(written)} parts")
    return problems
