"""One look at the world: parts in scratch, new manifest lines, new failures. Blocking; runs in a thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.failure_ring import Failure, FailureReader
from hs_formats.jsonl import TailReader
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, part_prefix, rid_of_part, run_of_rid

__all__ = ["Look", "Scanner", "parts_of_runs"]

_FETCH_S = 0.5
"""Pause between two listings of the manifests in an object store."""


@dataclass(slots=True)
class Look:
    """What is new since the last look. Scratch is listed before the manifest is read, so that a part on its way is in
    one of both.

    Attributes:
        appeared: parts that lie in scratch now, each with its rid.
        gone: parts that lay there.
        lines: of the manifests.
        failures: of the servers.
    """

    appeared: list[tuple[str, PartName]] = field(default_factory=list)
    gone: list[tuple[str, PartName]] = field(default_factory=list)
    lines: list[ManifestLine] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.appeared or self.gone or self.lines or self.failures)


def parts_of_runs(scratch: Path, runs: Collection[str]) -> dict[str, list[PartName]]:
    """The ready parts of `runs` in scratch, by rid.

    Raises:
        OSError: scratch is gone.
    """
    prefixes = tuple(map(part_prefix, runs))
    found: dict[str, list[PartName]] = {}
    with os.scandir(scratch) as entries:
        for entry in entries:
            if entry.name.startswith(prefixes):
                part = PartName.try_parse(entry.name)
                if part is not None:
                    found.setdefault(rid_of_part(entry.name), []).append(part)
    return found


class Scanner:
    """Follows scratch, manifests and failure rings for the parts of some runs.

    Every manifest line of these runs is reported once per manifest file that holds it. Names are parsed once, however
    long their parts wait for the mover. What was found before a look failed is part of the next one.
    """

    def __init__(self, control: ControlFolder, paths: DatasetPaths, runs: Collection[str]) -> None:
        self._control = control
        self._paths = paths
        self._folder = paths.manifest
        self._fetched_at_s = float("-inf")
        self._runs = frozenset(runs)
        self._tails: dict[str, TailReader[ManifestLine]] = {}
        self._rings: dict[Path, FailureReader] = {}
        self._keep = _mentions(self._runs)
        self._prefixes = tuple(map(part_prefix, self._runs))
        self._present: dict[str, tuple[str, PartName] | None] = {}
        self._found = Look()

    def look(self) -> Look:
        """Look once.

        Raises:
            OSError: scratch is gone, or a manifest cannot be read.
        """
        self._list()
        self._read_lines()
        self._read_failures()
        found, self._found = self._found, Look()
        return found

    def _list(self) -> None:
        with os.scandir(self._control.scratch) as entries:
            names = {entry.name for entry in entries if entry.name.startswith(self._prefixes)}
        present = self._present
        for name in names - present.keys():
            part = PartName.try_parse(name)
            present[name] = known = None if part is None else (rid_of_part(name), part)
            if known is not None:
                self._found.appeared.append(known)
        for name in present.keys() - names:
            known = present.pop(name)
            if known is not None:
                self._found.gone.append(known)

    def _read_lines(self) -> None:
        if not self._paths.local and time.monotonic() >= self._fetched_at_s + _FETCH_S:
            self._paths.refresh("manifest")
            self._fetched_at_s = time.monotonic()
        for path in sorted(self._folder.glob("*.jsonl")):
            tail = self._tails.get(path.name)
            if tail is None:
                tail = self._tails[path.name] = TailReader(path, ManifestLine, keep=self._keep)
            for line in tail.poll():
                part = PartName.try_parse(line.part)
                if part is not None and part.rid.run in self._runs:
                    self._found.lines.append(line)

    def _read_failures(self) -> None:
        for path in self._control.failure_paths():
            ring = self._rings.get(path)
            if ring is None:
                ring = self._rings[path] = FailureReader(path)
            try:
                failures = [failure for failure in ring.poll() if run_of_rid(failure.rid) in self._runs]
            except (FormatError, OSError):
                continue  # being created or removed; the next look sees it
            self._found.failures.extend(failures)


def _mentions(runs: Collection[str]) -> Callable[[bytes], bool]:
    needles = [part_prefix(run).encode() for run in runs]
    return lambda line: any(needle in line for needle in needles)
