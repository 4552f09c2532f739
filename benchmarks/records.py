"""Records as the capture left them in scratch: found by name, put together from their parts, compared bit by bit."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.names import PartName
from hs_formats.part import inspect_part
from hs_formats.tiling import cover

__all__ = ["Comparison", "Record", "find_parts", "read_record", "relative_error", "wait_for_records"]

_BITS: Mapping[str, Any] = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32}
_MANTISSA_BITS: Mapping[str, int] = {"bfloat16": 7, "float16": 10, "float32": 23}
_WAIT_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Record:
    """One request's states as bits [n, k+1, H] of unsigned integers, and its ids [n]."""

    bits: npt.NDArray[Any]
    dtype: str
    input_ids: npt.NDArray[np.int64]


@dataclass(slots=True)
class Comparison:
    """What came of comparing two sets of records, over all of them; lists have an entry a slot.

    `max_ulp` is the largest difference in units in the last place of the value, or of the slot's RMS where that is
    larger: near zero the distance to a neighbour says nothing.
    """

    records: int = 0
    tokens: int = 0
    bit_equal: int = 0
    max_ulp: list[float] = field(default_factory=list)
    max_relative: list[float] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def add(self, name: str, left: Record, right: Record) -> None:
        """Compare two records and add what came of it; `right` is the reference."""
        slots = right.bits.shape[1]
        if not self.max_ulp:
            self.max_ulp, self.max_relative = [0.0] * slots, [0.0] * slots
        self.records += 1
        self.tokens += len(right.bits)
        if left.bits.shape != right.bits.shape or left.dtype != right.dtype:
            self.different.append(f"{name}: {left.dtype} {left.bits.shape} against {right.dtype} {right.bits.shape}")
            self.max_relative = [1.0] * slots
            return
        if np.array_equal(left.bits, right.bits) and np.array_equal(left.input_ids, right.input_ids):
            self.bit_equal += 1
            return
        self.different.append(f"{name}, {len(right.bits)} tokens")
        for slot in range(slots):
            a, b = _values(left.bits[:, slot], right.dtype), _values(right.bits[:, slot], right.dtype)
            self.max_ulp[slot] = max(self.max_ulp[slot], _ulps(a, b, right.dtype))
            self.max_relative[slot] = max(self.max_relative[slot], _relative(a, b))

    def merge(self, other: Comparison) -> None:
        """Add what another comparison found."""
        self.records += other.records
        self.tokens += other.tokens
        self.bit_equal += other.bit_equal
        self.different += other.different
        for mine, theirs in ((self.max_ulp, other.max_ulp), (self.max_relative, other.max_relative)):
            mine[:] = [max(pair) for pair in zip(mine, theirs, strict=True)] if mine else theirs


def find_parts(scratch: Path) -> dict[tuple[str, int], list[PartName]]:
    """The parts in `scratch`, by request id and rank."""
    found: defaultdict[tuple[str, int], list[PartName]] = defaultdict(list)
    with os.scandir(scratch) as entries:
        for entry in entries:
            name = PartName.try_parse(entry.name)
            if name is not None:
                found[str(name.rid), name.rank].append(name)
    return found


def wait_for_records(
    scratch: Path, prompts: Mapping[str, int], *, ranks: Sequence[int], each: bool, timeout_s: float = 120.0
) -> list[str]:
    """Wait until the records (request id → tokens) are complete; returns those that are not when the time is up.

    With `each`, every rank must have the whole record; otherwise all ranks together.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        parts = find_parts(scratch)
        missing = [rid for rid, n in prompts.items() if not _complete(parts, rid, n, ranks=ranks, each=each)]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(_WAIT_POLL_S)


def _complete(
    parts: Mapping[tuple[str, int], list[PartName]], rid: str, tokens: int, *, ranks: Sequence[int], each: bool
) -> bool:
    ranges = [[(part.start, part.stop) for part in parts.get((rid, rank), [])] for rank in ranks]
    groups = ranges if each else [[item for group in ranges for item in group]]
    return all(cover(tokens, group).exact for group in groups)


def read_record(scratch: Path, parts: Iterable[PartName]) -> Record:
    """Put a record together from the parts that tile it.

    Raises:
        FormatError: a part is not what its name says.
        OSError: a part cannot be read.
    """
    ordered = sorted(parts, key=lambda part: part.start)
    pieces: list[npt.NDArray[Any]] = []
    ids: list[npt.NDArray[np.int64]] = []
    dtype = ""
    for part in ordered:
        path = scratch / str(part)
        with path.open("rb") as file:
            info = inspect_part(file, part)
        dtype = info.meta.dtype
        for span, kind, into in ((info.hidden_states, _BITS[dtype], pieces), (info.input_ids, np.int64, ids)):
            spec = span.spec
            into.append(np.fromfile(path, dtype=kind, count=spec.count, offset=span.offset).reshape(spec.shape))
    return Record(np.concatenate(pieces), dtype, np.concatenate(ids))


def _values(bits: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.float32]:
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16 if dtype == "float16" else np.float32).astype(np.float32)


def _ulps(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], dtype: str) -> float:
    rms = np.sqrt(np.mean(b.astype(np.float64) ** 2))
    scale = np.maximum(np.abs(b), np.float32(max(rms, np.finfo(np.float32).tiny)))
    spacing = np.exp2(np.floor(np.log2(scale)) - _MANTISSA_BITS[dtype])
    return round(float((np.abs(a - b) / spacing).max()), 3)


def _relative(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    norm = float(np.linalg.norm(b.astype(np.float64)))
    difference = float(np.linalg.norm((a - b).astype(np.float64)))
    return difference / norm if norm else difference


def relative_error(left: npt.NDArray[Any], right: npt.NDArray[Any], dtype: str) -> float:
    """‖left - right‖ / ‖right‖ of two arrays of bits."""
    return _relative(_values(left, dtype), _values(right, dtype))
