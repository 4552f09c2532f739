"""`hs-client prune`: stored parts that belong to no sample, found and, when told so, deleted.

Only payload is deleted. Manifests and ledgers stay as they are; what refers to deleted files there is no sample's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_client.claim import live_runs
from hs_client.dataset_argument import local_only
from hs_client.info_command import open_dataset
from hs_formats.control import ControlFolder
from hs_formats.dataset import UNCLAIMED, DatasetPaths
from hs_formats.errors import FormatError, PreflightError, StorageError
from hs_formats.index import DatasetIndex
from hs_formats.ledger import Done, Failed, Intent, iter_ledger
from hs_formats.location import Location
from hs_formats.manifest import ManifestLine, ManifestReader

__all__ = ["Orphan", "delete", "find_orphans"]

_STRANGER_S = 3600.0
"""A run of another scratch, whose client cannot be asked, counts as alive for so long after its last ledger line."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """A file that no sample needs, and why."""

    path: Path
    size_bytes: int
    why: str


def find_orphans(dataset: Location, scratch: Path) -> list[Orphan]:
    """Orphans of the dataset, and parts of runs that nobody claimed beside it.

    Left alone are winners, records of open intents (the next run may adopt them) and everything of runs whose client
    lives, by its lock in `scratch`, or may live, having written its ledger lately and being unknown there.

    Raises:
        PreflightError: this is no dataset, or its ledgers and manifests contradict each other.
    """
    folder = local_only(dataset, "prune")
    paths = open_dataset(folder)
    control = ControlFolder(scratch)
    busy = live_runs(control) if control.clients.is_dir() else set()
    try:
        busy |= _strangers(paths, control)
        # In this order: whatever a run that goes on adds meanwhile can only spare a part.
        lines = ManifestReader(paths.manifest).poll()
        reasons = _losers(paths)
        index = DatasetIndex.load(paths)
        winners = {str(sample.rid) for sample in index.samples.values()}
        winners |= {sample.rid for sample in index.broken.values()}  # what is left of them is for `verify` to judge
        return [
            *_stored(paths, lines, winners=winners, reasons=reasons, busy=busy),
            *_files(paths.quarantine, "quarantined", inside=folder),
            *_files(
                folder.absolute().parent / UNCLAIMED,
                "of a run that nobody claimed",
                busy,
                inside=folder.absolute().parent,
            ),
        ]
    except (FormatError, OSError) as error:
        raise PreflightError(f"{dataset}: {error}") from None


def _strangers(paths: DatasetPaths, control: ControlFolder) -> set[str]:
    at_s = time.time()
    return {
        path.stem
        for path in paths.ledger.glob("*.jsonl")
        if not (control.runs / path.name.replace(".jsonl", ".json")).exists()
        and at_s - path.stat().st_mtime < _STRANGER_S
    }


def _losers(paths: DatasetPaths) -> Mapping[str, str]:
    """Why an attempt that is no winner will never be one, by rid."""
    samples: dict[str, str] = {}
    done: set[str] = set()
    failed: set[str] = set()
    for path in paths.ledger.glob("*.jsonl"):
        for line in iter_ledger(path):
            match line:
                case Intent():
                    samples[line.rid] = line.sample_id
                case Done():
                    done.add(line.sample_id)
                case Failed(rid=rid) if rid:
                    failed.add(rid)
                case _:
                    pass
    reasons: dict[str, str] = {}
    for rid, sample in samples.items():
        if sample in done:
            reasons[rid] = "of another attempt at a sample that is done"
        elif rid in failed:
            reasons[rid] = "of a failed attempt"
        else:
            reasons[rid] = ""  # still open: the next run may adopt it
    return reasons


def _stored(
    paths: DatasetPaths,
    lines: Iterable[ManifestLine],
    *,
    winners: set[str],
    reasons: Mapping[str, str],
    busy: set[str],
) -> Iterator[Orphan]:
    for line in lines:
        rid = line.name.rid
        why = reasons.get(str(rid), "of a request that no ledger knows")
        if line.status == "stored" and line.path and str(rid) not in winners and rid.run not in busy and why:
            path = paths.stored_file(line.path)
            if path.is_file() and not path.is_symlink() and _really_inside(path, paths.root):
                yield Orphan(path, path.stat().st_size, why)


def _really_inside(path: Path, folder: Path) -> bool:
    """A folder that is a link may lead to files of another dataset, or of nobody's: they are not ours to delete."""
    return path.parent.resolve().is_relative_to(folder.resolve())


def _files(folder: Path, why: str, busy: set[str] | None = None, *, inside: Path) -> Iterator[Orphan]:
    if not _really_inside(folder / "any", inside):
        return
    for root, _, names in os.walk(folder):  # which enters no link
        if busy and busy & set(Path(root).relative_to(folder).parts):
            continue
        for name in sorted(names):
            path = Path(root) / name
            yield Orphan(path, path.lstat().st_size, why)


def delete(orphans: list[Orphan]) -> int:
    """Delete the files; returns the bytes freed.

    Raises:
        StorageError: one cannot be deleted.
    """
    freed = 0
    for orphan in orphans:
        try:
            orphan.path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"cannot delete {orphan.path} ({error.strerror})") from None
        freed += orphan.size_bytes
    return freed
