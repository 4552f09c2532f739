"""The dataset folder: where each file lies, and ``dataset.json``, what every record in it shares."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from hs_formats.durable import link_durable, make_folders, write_durable
from hs_formats.errors import FormatError
from hs_formats.jsonl import AppendLog, Log
from hs_formats.location import Location, ObjectUrl, parse_location
from hs_formats.names import PartName
from hs_formats.part import parse_struct
from hs_formats.regular import read_regular

if TYPE_CHECKING:
    from hs_formats.stored import Stored

__all__ = [
    "ROWS_PER_FOLDER",
    "UNCLAIMED",
    "DataFile",
    "DatasetInfo",
    "DatasetPaths",
    "check_dataset_name",
    "dataset_paths",
]

ROWS_PER_FOLDER = 500
"""Rows of a run whose parts share a folder; with a few parts a row a folder stays below about 2,000 files."""

UNCLAIMED = "unclaimed"
"""Folder beside the datasets for the parts of runs that no client has registered."""

_INFORMATIVE = ("model", "tokenizer", "capture")

_EMPTY_IS_UNKNOWN = ("tokenizer_hash", "template_hash", "template_arguments", "train_on")
"""A run of token ids needs no tokenizer and may not have seen one."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", re.ASCII)


def check_dataset_name(name: str) -> str:
    """`name`, if it can be a folder of its own below the destination.

    Raises:
        FormatError: it could not.
    """
    if _NAME.fullmatch(name) is None or name == UNCLAIMED:
        raise FormatError(
            f"dataset name {name!r}: use letters, digits, '.', '_' and '-', 128 at most, "
            f"not starting with '.' or '-', and not {UNCLAIMED!r}"
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """``dataset.json``: written once by the first client, compared by all later ones."""

    model: str
    config_hash: str
    num_layers: int
    boundaries: list[int]
    dtype: str
    hidden_size: int
    tokenizer: str
    tokenizer_hash: str
    template_hash: str
    last_state: str = "post_norm"
    template_arguments: str = ""
    train_on: str = ""
    generation: str = ""
    capture: dict[str, object] = field(default_factory=dict)
    format: str = "hs-dataset"
    version: int = 1

    def differences(
        self, other: DatasetInfo, *, here: str = "the dataset", there: str = "the server and tokenizer here have"
    ) -> list[str]:
        """What makes records of `other` unfit for this dataset; `here has …, there …` names both in the messages.

        Paths of model and tokenizer may differ, hashes may not.
        """
        found: list[str] = []
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "generation":
                found += _other_keys(mine, theirs, here, there)
                continue
            unknown = item.name in _EMPTY_IS_UNKNOWN and not (mine and theirs)
            if item.name not in _INFORMATIVE and mine != theirs and not unknown:
                found.append(f"{item.name}: {here} has {mine}, {there} {theirs}")
        return found


def _other_keys(mine: str, theirs: str, here: str, there: str) -> Iterator[str]:
    """How two settings of generation differ, JSON objects or empty, by key."""
    if not (mine and theirs):
        if mine != theirs:
            yield f"generation: {here} has {mine or 'none'}, {there} {theirs or 'none'}"
        return
    try:
        one, other = (msgspec.json.decode(text, type=dict[str, Any]) for text in (mine, theirs))
    except msgspec.MsgspecError:
        one, other = {"": mine}, {"": theirs}
    for key in sorted(one.keys() | other.keys()):
        if one.get(key) != other.get(key):
            yield f"generation {key}: {here} has {one.get(key)}, {there} {other.get(key)}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """What lies below ``data``: `path` relative to the dataset; `regular`: neither link nor device."""

    path: str
    size_bytes: int
    regular: bool = True


class DatasetPaths:
    """Names of everything inside one dataset folder, and the few things that are done otherwise where the dataset lies
    in an object store (`hs_formats.objectstore.paths`): there `root` is a local copy of the books alone."""

    local = True
    """The dataset is this folder; what changes files in place can do so."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.info = root / "dataset.json"
        self.data = root / "data"
        self.manifest = root / "manifest"
        self.ledger = root / "ledger"
        self.quarantine = root / "quarantine"
        self.timeline = root / "timeline"
        self.responses = root / "responses"
        self.verified = root / "verified.json"

    def stored_name(self, part: PartName, suffix: str) -> str:
        """Path of a stored part relative to the dataset; `suffix` is the codec's, such as ``.pt.zst``."""
        stem = str(part).removesuffix(".pt")
        return f"data/{part.rid.run}/{part.rid.row // ROWS_PER_FOLDER:06d}/{stem}{suffix}"

    def stored_file(self, path: str) -> Path:
        """The file that a manifest line's `path` names.

        Raises:
            FormatError: `path` leads out of the dataset.
        """
        relative = PurePosixPath(path)
        if not relative.parts or relative.is_absolute() or ".." in relative.parts or "\0" in path:
            raise FormatError(f"{path!r} is no path of a stored part inside {self.root}")
        return self.root / relative

    @property
    def location(self) -> Location:
        """Where the dataset lies, as users know it."""
        return self.root

    @property
    def name(self) -> str:
        """Last component of the location: how the dataset is called."""
        return self.location.name

    @property
    def shown(self) -> str:
        """The same as text."""
        return str(self.location)

    def refresh(self, *books: str) -> None:
        """Have the books as they are now, or only those of some folders, such as ``manifest``.

        Raises:
            OSError: they cannot be read.
        """

    def stored(self, path: str) -> Stored:
        """What a manifest line's `path` names, to be read.

        Raises:
            FormatError: `path` leads out of the dataset.
        """
        return self.stored_file(path)

    def has_file(self, path: str) -> bool:
        """Whether there is a regular file of that name, relative to the dataset."""
        return (self.root / path).is_file()

    def data_files(self, run: str = "") -> Iterator[DataFile]:
        """Everything below ``data``, or only what is of one run.

        Raises:
            OSError: a folder cannot be read.
        """
        for root, _, names in os.walk(self.data / run):
            for file_name in sorted(names):
                path = Path(root) / file_name
                try:
                    found = path.lstat()
                except FileNotFoundError:
                    continue  # a temporary that was just renamed, or pruned
                yield DataFile(str(path.relative_to(self.root)), found.st_size, stat.S_ISREG(found.st_mode))

    def remove_temporaries(self, run: str, suffix: str) -> None:
        """Remove what was being sent to an object store when its sender died; of folders the mover sees to that.

        Raises:
            OSError: the store fails.
        """

    def modified_s(self, path: str) -> float:
        """When a file was last written, in seconds since the epoch.

        Raises:
            OSError: it is gone.
        """
        return (self.root / path).stat().st_mtime

    def open_log(self, book: str, name: str) -> Log:
        """The end of the log `name` of `book`, such as ``ledger`` and a run, for its only writer.

        Raises:
            OSError: it cannot be opened.
        """
        return AppendLog(self.root / book / f"{name}.jsonl")

    def publish(self, path: Path) -> None:
        """Send a file below `root` to where the dataset lies; nothing where that is `root`.

        Raises:
            OSError: it cannot be read, or the store fails.
        """

    def replace_verified(self, data: bytes) -> None:
        """Replace ``verified.json``, durably.

        Raises:
            OSError: the dataset cannot be written; the old file is still there.
        """
        write_durable(self.verified, data)

    def ledger_file(self, run: str) -> Path:
        """Ledger of one run."""
        return self.ledger / f"{run}.jsonl"

    def timeline_file(self, run: str) -> Path:
        """Timeline of one run; may be missing."""
        return self.timeline / f"{run}.jsonl"

    def responses_file(self, run: str) -> Path:
        """Answers that one run had generated; may be missing."""
        return self.responses / f"{run}.jsonl"

    def manifest_file(self, mover_id: str) -> Path:
        """Manifest of one mover."""
        return self.manifest / f"{mover_id}.jsonl"

    def create(self) -> None:
        """Make the folders, durably.

        Raises:
            OSError: as `os.mkdir`.
        """
        for folder in (self.data, self.manifest, self.ledger):
            make_folders(folder)

    def read_info(self) -> DatasetInfo | None:
        """The dataset's description; None when there is none yet.

        Raises:
            FormatError: ``dataset.json`` is damaged or of another version.
        """
        try:
            data: Mapping[str, Any] = msgspec.json.decode(read_regular(self.info), type=dict[str, Any])
        except FileNotFoundError:
            return None
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FormatError(f"{self.shown}/{self.info.name} is damaged: {error}") from error
        if data.get("format") != "hs-dataset" or data.get("version") != 1:
            raise FormatError(
                f"{self.shown}/{self.info.name} is {data.get('format')!r} version {data.get('version')!r}, "
                "not hs-dataset 1"
            )
        try:
            return parse_struct(DatasetInfo, data)
        except FormatError as error:
            raise FormatError(f"{self.shown}/{self.info.name}: {error}") from error

    def write_info(self, info: DatasetInfo) -> bool:
        """Create ``dataset.json`` unless it exists; True when this call made it.

        Raises:
            OSError: the destination cannot be written.
        """
        return link_durable(self.info, msgspec.json.format(msgspec.json.encode(asdict(info)), indent=1) + b"\n")


def dataset_paths(location: str | os.PathLike[str] | ObjectUrl) -> DatasetPaths:
    """The dataset at a path or at a URL of an object store; of the latter the books are fetched now.

    Raises:
        HsError: the URL is none, or its store cannot be used as the environment has it.
        OSError: the store cannot be read.
    """
    where = parse_location(location)
    if isinstance(where, Path):
        return DatasetPaths(where)
    from hs_formats.objectstore.paths import RemotePaths

    paths = RemotePaths(where)
    paths.refresh()
    return paths
