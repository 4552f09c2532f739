"""From the part files of one request to arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.container import DTYPES
from hs_formats.errors import FormatError
from hs_formats.names import PartName
from hs_formats.part import PartMeta, inspect_part

__all__ = ["MAX_ROWS", "RankRecord", "merge", "read_rank", "to_float"]

Bits = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]

MAX_ROWS = 2048
"""Rows of one part whose values are looked at: its first and its last ones; all ids are."""


@dataclass
class RankRecord:
    """What one rank wrote of one request; `tokens` says which token each row of `bits` [m, k+1, H] belongs to.

    `metas` are of each part, `ids` of all rows in the order of `ranges`, `broken` names parts that cannot be read.
    """

    metas: list[PartMeta] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    ids: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    tokens: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    bits: Any = None
    dtype: str = ""
    broken: list[str] = field(default_factory=list)

    @property
    def values(self) -> npt.NDArray[np.float32]:
        """The states as float32 [m, k+1, H]."""
        return to_float(self.bits, self.dtype)


def to_float(bits: Bits, dtype: str) -> npt.NDArray[np.float32]:
    """The float32 values of the bit patterns of `dtype`."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32)


def read_rank(folder: Path, names: Iterable[PartName]) -> RankRecord:
    """Read the parts `names` of one rank and one request.

    Raises:
        OSError: a part is there and cannot be read.
    """
    record = RankRecord()
    ids: list[npt.NDArray[np.int64]] = []
    tokens: list[npt.NDArray[np.int64]] = []
    bits: list[Any] = []
    for name in sorted(names):
        path = folder / str(name)
        try:
            with path.open("rb") as file:
                info = inspect_part(file, name)
        except FormatError as error:
            record.broken.append(f"{name}: {error}")
            continue
        rows = name.rows
        shown = _looked_at(rows)
        kind = np.uint32 if DTYPES[info.meta.dtype].itemsize == 4 else np.uint16
        shape = (rows, info.meta.slots, info.meta.hidden_size)
        states = np.memmap(path, kind, mode="r", offset=info.hidden_states.offset, shape=shape)
        bits.append(np.array(states[shown]))
        del states
        part_ids = np.fromfile(path, "<i8", count=rows, offset=info.input_ids.offset)
        ids.append(part_ids)
        tokens.append(name.start + shown)
        record.metas.append(info.meta)
        record.ranges.append((name.start, name.stop))
        record.dtype = info.meta.dtype
    if ids:
        record.ids = np.concatenate(ids)
    if len({(item.dtype, item.shape[1:]) for item in bits}) == 1:
        record.bits, record.tokens = np.concatenate(bits), np.concatenate(tokens)
    return record


def merge(records: Sequence[RankRecord]) -> RankRecord:
    """The rows of several ranks that share one record, in the order of the tokens."""
    merged = RankRecord()
    for record in records:
        merged.metas += record.metas
        merged.ranges += record.ranges
        merged.broken += record.broken
    if records:
        merged.ids = np.concatenate([record.ids for record in records])
    whole = [record for record in records if record.bits is not None]
    if len({(record.dtype, record.bits.shape[1:]) for record in whole}) == 1:
        merged.dtype = whole[0].dtype
        merged.tokens = np.concatenate([record.tokens for record in whole])
        order = np.argsort(merged.tokens, kind="stable")
        merged.tokens = merged.tokens[order]
        merged.bits = np.concatenate([record.bits for record in whole])[order]
    return merged


def _looked_at(rows: int) -> npt.NDArray[np.int64]:
    if rows <= MAX_ROWS:
        return np.arange(rows, dtype=np.int64)
    half = MAX_ROWS // 2
    return np.concatenate([np.arange(half), np.arange(rows - half, rows)]).astype(np.int64)
