"""What the moving thread and its workers tell each other about one part. Plain values only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.manifest import ManifestLine, PartStatus
from hs_formats.names import PartName
from hs_formats.stored import Codec
from hs_mover.destination import Destination
from hs_mover.meter import Meter
from hs_mover.written import Written

__all__ = ["Elsewhere", "Identity", "Known", "LeftAlone", "Outcome", "Reference", "SourceError", "Task"]


class LeftAlone(Exception):
    """The name is a part's but the file is not ours to move; the text says why."""


class Elsewhere(LeftAlone):
    """The part belongs to a dataset below another destination."""


class SourceError(Exception):
    """The source cannot be read just now; the text is the system's."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a file from another one that later takes its name."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        """From ``stat``."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Known:
    """What the manifest says of a part already."""

    status: PartStatus
    xxh3: str


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows of a chunk as the first rank wrote them; `verdict` names an earlier disagreement."""

    rank: int
    rows_xxh3: str
    ids_xxh3: str
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part and everything a worker needs to deal with it. `paths` None: nobody has claimed its run."""

    source: Path
    name: PartName
    destination: Destination
    paths: DatasetPaths | None
    codec: Codec
    mover_id: str
    settled: bool
    known: Known | None
    reference: Reference | None
    expected: DatasetInfo | None
    pace: Callable[[int], None]
    meter: Meter
    find_line: Callable[[PartName], Known | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What is left to do: make `written` durable and put it in place, then `folders`; append `line` if there is one;
    then unlink the source.

    `claimed`: the part belongs to a dataset. `note` says for the log what became of it.
    """

    identity: Identity
    line: ManifestLine | None
    claimed: bool = True
    written: Written | None = None
    folders: tuple[Path, ...] = ()
    note: str = ""
    quarantined: bool = False
