"""One stored part, decoded whole, with all that a manifest line should say of it."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName
from hs_formats.part import PartMeta, inspect_part
from hs_formats.stored import read_stored, stored_codec, stored_size
from hs_formats.stored_zip import read_directory

__all__ = ["PartFile", "read_part"]

UNSIGNED = {"bfloat16": "<u2", "float16": "<u2", "float32": "<u4"}


@dataclass(frozen=True, slots=True)
class PartFile:
    """A stored part whose container is sound.

    Attributes:
        ids: int64 [m].
        bits: the states' bit patterns, unsigned [m, k+1, H].
        data: the whole ``.pt``, which both lie in.
    """

    path: str
    codec: str
    stored_bytes: int
    xxh3: str
    rows_xxh3: str
    ids_xxh3: str
    meta: PartMeta
    ids: npt.NDArray[np.int64]
    bits: npt.NDArray[np.unsignedinteger]
    data: bytes

    @property
    def name(self) -> PartName:
        """The part's name."""
        return self.meta.name

    def line(self, *, flags: list[str]) -> ManifestLine:
        """The manifest line that this file should have."""
        return ManifestLine(
            part=str(self.name),
            status="stored",
            path=self.path,
            raw_bytes=len(self.data),
            stored_bytes=self.stored_bytes,
            codec=self.codec,
            xxh3=self.xxh3,
            rows_xxh3=self.rows_xxh3,
            ids_xxh3=self.ids_xxh3,
            writers=self.meta.writers,
            expected_ranks=self.meta.expected_ranks,
            flags=flags,
        )

    def unlike(self, line: ManifestLine) -> list[str]:
        """What `line` says otherwise, a text for each field; the checksum of the whole file first."""
        own = self.line(flags=[])
        fields = (
            *("xxh3", "rows_xxh3", "ids_xxh3", "raw_bytes", "stored_bytes", "codec", "writers", "expected_ranks"),
        )
        return [
            f"{name} is {getattr(own, name)} and the manifest says {getattr(line, name)}"
            for name in fields
            if getattr(own, name) != getattr(line, name)
        ]

    def misfits(self, info: DatasetInfo) -> list[str]:
        """What of its meta does not fit the dataset, a text for each."""
        fields = ("boundaries", "dtype", "hidden_size", "last_state", "config_hash")
        return [
            f"{name} is {getattr(self.meta, name)} and dataset.json says {getattr(info, name)}"
            for name in fields
            if getattr(self.meta, name) != getattr(info, name)
        ]

    def check_crc(self) -> None:
        """Compare every entry of the file with the CRC in its directory.

        Raises:
            FormatError: names the first entry that is damaged.
        """
        for entry in read_directory(io.BytesIO(self.data)).values():
            if zlib.crc32(memoryview(self.data)[entry.offset : entry.offset + entry.size]) != entry.crc32:
                raise FormatError(f"{entry.name} is damaged: its CRC is wrong")


def read_part(paths: DatasetPaths, path: str, name: PartName) -> PartFile:
    """Decode the file at `path` (relative to the dataset), which should hold the part `name`.

    Raises:
        FormatError: it is damaged, or holds something else.
        OSError: it is missing or cannot be read.
    """
    file = paths.stored(path)
    data = read_stored(file)
    try:
        info = inspect_part(io.BytesIO(data), name)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    if info.meta.dtype not in UNSIGNED:
        raise FormatError(f"{file}: states of {info.meta.dtype}, not one of {', '.join(UNSIGNED)}")
    ids = np.frombuffer(data, "<i8", info.input_ids.spec.count, info.input_ids.offset)
    states = info.hidden_states
    bits = np.frombuffer(data, UNSIGNED[info.meta.dtype], states.spec.count, states.offset)
    return PartFile(
        path=path,
        codec=stored_codec(file),
        stored_bytes=stored_size(file),
        xxh3=xxh3_hex([data]),
        rows_xxh3=xxh3_hex([memoryview(data)[states.offset : states.offset + states.spec.nbytes]]),
        ids_xxh3=xxh3_hex(
            [memoryview(data)[info.input_ids.offset : info.input_ids.offset + info.input_ids.spec.nbytes]]
        ),
        meta=info.meta,
        ids=ids,
        bits=bits.reshape(states.spec.shape),
        data=data,
    )
