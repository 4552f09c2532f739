"""What a mover does at start about its earlier life: remove its own temporaries, adopt stored parts without a line."""

from __future__ import annotations

import io
import logging
import os
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from hs_formats.dataset import UNCLAIMED, DatasetPaths
from hs_formats.durable import fsync_folder
from hs_formats.errors import FormatError
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName
from hs_formats.part import inspect_part
from hs_formats.stored import codec_of, read_stored, stored_codec, stored_size
from hs_mover.books import Books, name_hash, run_lines
from hs_mover.checks import PartDigest, read_pieces
from hs_mover.destination import Destination
from hs_mover.store import manifest_line
from hs_mover.written import temporary_suffix

__all__ = ["adoptable", "recover_run", "stored_part", "sweep_unclaimed"]

_log = logging.getLogger(__name__)

_BATCH = 64
_PATIENCE_S = 1.0


def recover_run(
    books: Books, run: str, mover_id: str, *, noted: Collection[int] | array[int], wait: Callable[[float], object]
) -> int:
    """Clean up and adopt for one run of one dataset; returns the number of adopted parts.

    A part must lack its line twice, with a `wait` (seconds) between: another mover may just be about to write it.
    `wait` is also called, with 0, before each part. `noted` is `hs_mover.books.noted_names` of the run.

    Raises:
        OSError: the destination fails.
    """
    paths = books.paths
    if paths.local:
        sweep_temporaries(paths.quarantine, mover_id)
        for folder in _folders(paths.data / run):
            sweep_temporaries(folder, mover_id)
    else:
        paths.remove_temporaries(run, temporary_suffix(mover_id))
    batch: list[ManifestLine] = []
    adopted = 0
    candidates = adoptable(paths, run, noted=noted)
    if candidates:
        wait(_PATIENCE_S)
        still = set(adoptable(paths, run))
        candidates = [candidate for candidate in candidates if candidate in still]
    for name, path in candidates:
        wait(0)
        try:
            batch.append(stored_part(paths, name, path))
            if paths.local:
                fsync_folder((paths.root / path).parent)
        except FormatError as error:
            _log.warning("%s/%s has no manifest line and is damaged, leaving it out: %s", paths.shown, path, error)
            continue
        if len(batch) >= _BATCH:
            books.commit(batch)
            adopted += len(batch)
            batch = []
    books.commit(batch)
    adopted += len(batch)
    if adopted:
        _log.info("adopted %d stored parts of run %s that had no manifest line", adopted, run)
    return adopted


def adoptable(
    paths: DatasetPaths, run: str, *, noted: Collection[int] | array[int] | None = None
) -> list[tuple[PartName, str]]:
    """Stored parts of `run` that no manifest mentions, by name, each with its path relative to the dataset; the
    manifests are read where `noted` is missing.

    Raises:
        OSError: the destination cannot be read.
    """
    found: dict[str, str] = {}
    for file in paths.data_files(run):
        name = _stored_name(file.path.rpartition("/")[2])
        if name is not None and name.rid.run == run:
            found[str(name)] = file.path
    if noted is not None:
        known = frozenset(noted)
        found = {text: path for text, path in found.items() if name_hash(text) not in known}
    elif found:
        paths.refresh("manifest")
        for line in run_lines(paths, run):
            found.pop(line.part, None)
    return [(PartName.parse(text), path) for text, path in sorted(found.items())]


def stored_part(paths: DatasetPaths, name: PartName, path: str) -> ManifestLine:
    """The manifest line of a stored file, after decoding and checking all of it.

    Raises:
        FormatError: it is damaged; the text says how.
        OSError: it cannot be read.
    """
    file = paths.stored(path)
    data = read_stored(file)
    info = inspect_part(io.BytesIO(data), name)
    digest = PartDigest(info)

    def read_into(into: memoryview, at: int) -> int:
        into[:] = data[at : at + len(into)]
        return len(into)

    for _ in read_pieces(read_into, len(data), digest, pace=lambda _: None):
        pass
    if digest.problem:
        raise FormatError(digest.problem)
    return manifest_line(
        name,
        "stored",
        digest,
        info,
        raw_bytes=len(data),
        codec=stored_codec(file),
        path=path,
        stored_bytes=stored_size(file),
        flags=["adopted"],
    )


def sweep_temporaries(folder: Path, mover_id: str) -> None:
    """Remove what this mover, and no other, was writing in `folder` when it died."""
    suffix = temporary_suffix(mover_id)
    for entry in _entries(folder):
        if entry.name.startswith(".") and entry.name.endswith(suffix):
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


def sweep_unclaimed(destination: Destination, mover_id: str) -> None:
    """The same for all folders of unclaimed runs."""
    if not destination.local:
        destination.sweep(temporary_suffix(mover_id))
        return
    for folder in _folders(destination.root / UNCLAIMED):
        sweep_temporaries(folder, mover_id)
        sweep_temporaries(folder / "quarantine", mover_id)


def _stored_name(file_name: str) -> PartName | None:
    try:
        codec = codec_of(file_name)
    except FormatError:
        return None
    return PartName.try_parse(file_name.removesuffix(codec.suffix) + ".pt")


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        return


def _folders(folder: Path) -> list[Path]:
    return sorted(folder / entry.name for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))
