"""Writes a new dataset of samples of others: payload linked where that can be, books new, all by one rename."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from hs_client.subset.query import Candidate
from hs_client.subset.sources import Source
from hs_formats.dataset import DatasetInfo, DatasetPaths, check_dataset_name
from hs_formats.durable import fsync_folder, make_folders
from hs_formats.errors import FormatError, PreflightError, StorageError, UsageError
from hs_formats.index import DatasetIndex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import LedgerLine
from hs_formats.location import Location
from hs_formats.manifest import ManifestLine
from hs_formats.stored import Stored
from hs_formats.verified import VerifiedSet

__all__ = ["MANIFEST", "Chosen", "Written", "joined_info", "write_dataset"]

MANIFEST = "copied"
"""Stem of the manifest of a dataset that was made of others."""

_UNLINKABLE = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
_BATCH = 10_000
_COPY_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Chosen:
    """A sample of `source` and the id that it shall have."""

    source: Source
    candidate: Candidate
    sample_id: str


@dataclass(slots=True)
class Written:
    """What a new dataset holds; files that were linked and that had to be copied, and their bytes."""

    samples: int = 0
    tokens: int = 0
    linked: int = 0
    copied: int = 0
    stored_bytes: int = 0
    verified: int = 0


def write_dataset(out: Path, info: DatasetInfo, chosen: Sequence[Chosen], *, copy: bool = False) -> Written:
    """Make the dataset `out`, which must not exist. It appears whole or not at all.

    Args:
        copy: copy payload even where it could be linked.

    Raises:
        UsageError: `out` exists or is no name for a dataset.
        PreflightError: a file of a sample is missing.
        StorageError: the disk fails.
    """
    try:
        check_dataset_name(out.name)
    except FormatError as error:
        raise UsageError(str(error)) from None
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out} exists: name a new dataset")
    building = out.with_name(f".{out.name}.{os.getpid()}.building")
    written = Written()
    try:
        make_folders(out.parent)
        _remove_leftovers(out)
        try:
            paths = DatasetPaths(building)
            paths.create()
            paths.write_info(info)
            _link_all(paths, chosen, copy, written)
            _write_books(paths, chosen)
            _mark(paths, chosen, written)
            _sync_folders(building)
            building.rename(out)
            fsync_folder(out.parent)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    except OSError as error:
        raise StorageError(f"cannot write {out} ({error}): see to the disk, then repeat") from None
    return written


def _remove_leftovers(out: Path) -> None:
    """What killed calls left behind."""
    pattern = re.compile(re.escape(f".{out.name}.") + r"([0-9]+)\.building")
    for path in out.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _link_all(paths: DatasetPaths, chosen: Iterable[Chosen], copy: bool, written: Written) -> None:
    folders: set[Path] = set()
    for each in chosen:
        sample = each.candidate.sample
        for part in sample.parts:
            source, target = each.source.paths.stored(part.path), paths.stored_file(part.path)
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders.add(target.parent)
            try:
                linked = not copy and isinstance(source, Path) and _link(source, target)
                if not linked:
                    _copy(source, target)
            except FileNotFoundError:
                raise PreflightError(
                    f"{source} of sample {sample.sample_id!r} is missing: `hs-client verify --repair` the dataset first"
                ) from None
            written.linked += linked
            written.copied += not linked
            written.stored_bytes += part.stored_bytes
        written.samples += 1
        written.tokens += sample.n


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source.resolve(), target)  # of a link, what it leads to: a relative one would lead nowhere from here
    except OSError as error:
        if error.errno in _UNLINKABLE:
            return False
        raise
    return True


def _copy(source: Stored, target: Path) -> None:
    if isinstance(source, Path):
        shutil.copyfile(source, target)
    else:
        with target.open("wb") as file:
            size = source.size_bytes()
            for at in range(0, size, _COPY_BYTES):
                file.write(source.read_at(at, min(_COPY_BYTES, size - at)))
    fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_books(paths: DatasetPaths, chosen: Sequence[Chosen]) -> None:
    _append(paths.manifest_file(MANIFEST), (line for each in chosen for line in _manifest_lines(each)))
    runs: dict[str, list[Chosen]] = {}
    for each in chosen:
        runs.setdefault(each.candidate.sample.rid.run, []).append(each)
    for run, members in runs.items():
        _append(paths.ledger_file(run), _ledger_lines(run, members))


def _manifest_lines(each: Chosen) -> Iterator[ManifestLine]:
    """Lines of the parts that were linked, and of other ranks' equal copies, which belong to the record."""
    kept = {part.part for part in each.candidate.sample.parts}
    for line in each.source.lines[str(each.candidate.sample.rid)]:
        if line.part in kept or line.status == "equal":
            yield line
        elif line.status == "stored":  # a second copy that was kept after a crash; here it is not
            yield msgspec.structs.replace(line, status="equal", path="", stored_bytes=0, codec="")


def _ledger_lines(run: str, members: Sequence[Chosen]) -> Iterator[LedgerLine]:
    started = next((each.source.runs[run] for each in members if run in each.source.runs), None)
    if started is not None:
        yield started
    for each in members:
        yield msgspec.structs.replace(each.candidate.intent, sample_id=each.sample_id)
    for each in members:
        yield msgspec.structs.replace(each.candidate.done, sample_id=each.sample_id)


def _append(path: Path, lines: Iterable[msgspec.Struct]) -> None:
    with AppendLog(path) as log:
        batch: list[msgspec.Struct] = []
        for line in lines:
            batch.append(line)
            if len(batch) >= _BATCH:
                log.append(batch)
                batch = []
        log.append(batch)
        log.sync()


def _mark(paths: DatasetPaths, chosen: Sequence[Chosen], written: Written) -> None:
    """What was verified stays so: the new books were read back, and the payload is the same."""
    index = DatasetIndex.load(paths)
    lost = [each.sample_id for each in chosen if each.sample_id not in index.samples]
    if lost:
        raise PreflightError(f"sample {lost[0]!r} would not be whole in the new dataset: verify the old one")
    verified = [each for each in chosen if each.candidate.verified]
    written.verified = len(verified)
    if verified:
        sources = {id(each.source): each.source.verified for each in verified}.values()
        checks = set.intersection(*(set(source.checks) for source in sources))
        at = min(source.verified_at for source in sources)
        order = [check for source in sources for check in source.checks if check in checks]
        marks = VerifiedSet.of(
            [index.samples[each.sample_id] for each in verified], verified_at=at, checks=dict.fromkeys(order)
        )
        marks.write(paths)


def _sync_folders(root: Path) -> None:
    for folder, _, _ in os.walk(root):
        with contextlib.suppress(FileNotFoundError):
            fsync_folder(Path(folder))


def joined_info(infos: Sequence[tuple[Location, DatasetInfo]]) -> DatasetInfo:
    """The description of a dataset of samples of all of these.

    Raises:
        PreflightError: they were not made alike.
    """
    first_path, joined = infos[0]
    for path, info in infos[1:]:
        differences = joined.differences(info, here=str(first_path), there=f"{path} has")
        if differences:
            raise PreflightError(f"{path} was not made as {first_path} was: {'; '.join(differences)}")
        known = {name: getattr(info, name) for name in ("tokenizer_hash", "template_hash") if not getattr(joined, name)}
        joined = replace(joined, **known)
    return joined
