"""Emptying scratch during a benchmark: finished parts are counted, checked and unlinked by a thread of ours."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from hs_formats.control import ControlFolder
from hs_formats.errors import FormatError
from hs_formats.failure_ring import Failure, FailureReader
from hs_formats.names import PartName
from hs_formats.part import inspect_part
from hs_formats.tiling import cover

__all__ = ["Drain"]

_PERIOD_S = 0.02
_INSPECT_EVERY = 16


class Drain:
    """Unlinks parts in `scratch` while the block runs; `files` and `bytes` count them.

    One part in sixteen is opened and its container, meta, shapes and name are checked against each other.
    """

    def __init__(self, scratch: Path) -> None:
        self.files = 0
        self.bytes = 0
        self.problems: list[str] = []
        self.failures: list[Failure] = []
        self._scratch = scratch
        self._control = ControlFolder(scratch)
        self._readers: dict[Path, FailureReader] = {}
        self._ranges: defaultdict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="bench-drain", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()

    def missing(self, prompts: Mapping[str, int], *, ranks: Iterable[int] = (0,), together: bool = False) -> list[str]:
        """Which of the records (request id → tokens) are not complete yet: of each rank, or of all of them together."""
        groups = [list(ranks)] if together else [[rank] for rank in ranks]
        with self._lock:
            return [
                rid
                for rid, tokens in prompts.items()
                if not all(
                    cover(tokens, [part for rank in group for part in self._ranges.get((rid, rank), [])]).exact
                    for group in groups
                )
            ]

    def wait_for(
        self, prompts: Mapping[str, int], *, timeout_s: float, ranks: Iterable[int] = (0,), together: bool = False
    ) -> float:
        """Wait until all records are complete; returns the seconds it took. Those that do not come are a problem."""
        began = time.perf_counter()
        wanted = list(ranks)
        while left := self.missing(prompts, ranks=wanted, together=together):
            if time.perf_counter() - began > timeout_s:
                self.problems.append(f"{len(left)} records incomplete after {timeout_s} s, such as {left[0]}")
                break
            time.sleep(0.005)
        return time.perf_counter() - began

    def _work(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self._sweep()
        self._sweep()

    def _sweep(self) -> None:
        for path in self._control.failure_paths():
            self.failures += self._readers.setdefault(path, FailureReader(path)).poll()
        with os.scandir(self._scratch) as entries:
            found = [(PartName.try_parse(entry.name), entry) for entry in entries]
        for name, entry in found:
            if name is None:
                continue
            size = entry.stat().st_size
            if self.files % _INSPECT_EVERY == 0:
                try:
                    with Path(entry.path).open("rb") as file:
                        inspect_part(file, name)
                except (FormatError, OSError) as error:
                    self.problems.append(f"{name}: {error}")
            os.unlink(entry.path)
            with self._lock:
                self.files += 1
                self.bytes += size
                self._ranges[str(name.rid), name.rank].append((name.start, name.stop))
