"""The manifest: one line per part that a mover took out of scratch, ``manifest/<mover id>.jsonl``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hs_formats.jsonl import TailReader
from hs_formats.names import PartName
from hs_formats.tiling import Writers

__all__ = ["ManifestLine", "ManifestReader", "PartStatus"]

PartStatus = Literal["stored", "equal", "quarantined"]


class ManifestLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part that has left scratch.

    `path` is relative to the dataset folder ("" where no bytes were kept). `xxh3` is of the original `.pt` file,
    `rows_xxh3` of the bytes of its hidden states, `ids_xxh3` of its int64 token ids. Status ``equal``: another rank's
    copy of the same rows was kept instead. Status ``quarantined``: `reason` says why the part is not to be used.
    """

    part: str
    status: PartStatus
    path: str
    raw_bytes: int
    stored_bytes: int
    codec: str
    xxh3: str = ""
    rows_xxh3: str = ""
    ids_xxh3: str = ""
    writers: Writers = "first"
    expected_ranks: list[int] = []
    flags: list[str] = []
    reason: str = ""
    stored_at: str = ""

    @property
    def name(self) -> PartName:
        """The part's parsed name.

        Raises:
            FormatError: the line holds no part name.
        """
        return PartName.parse(self.part)


class ManifestReader:
    """Follows all manifest files of a dataset. Equal lines for one part count once, the first line wins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tails: dict[str, TailReader[ManifestLine]] = {}
        self._seen: set[str] = set()

    @property
    def bad(self) -> int:
        """Complete lines that did not decode."""
        return sum(tail.bad for tail in self._tails.values())

    def poll(self) -> list[ManifestLine]:
        """Lines of parts not returned before.

        Raises:
            OSError: a manifest file cannot be read.
        """
        new: list[ManifestLine] = []
        for path in sorted(self.folder.glob("*.jsonl")):
            tail = self._tails.get(path.name)
            if tail is None:
                tail = self._tails[path.name] = TailReader(path, ManifestLine)
            for line in tail.poll():
                if line.part in self._seen or PartName.try_parse(line.part) is None:
                    continue
                self._seen.add(line.part)
                new.append(line)
        return new
