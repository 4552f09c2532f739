"""Where in a file floats lie, and in which pieces a codec takes the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hs_formats.errors import FormatError
from hs_formats.part import PartInfo
from hs_formats.planes import WORDS, Words, block_rows
from hs_formats.zstd import MAX_BLOCK_BYTES

__all__ = ["MAX_GROUP_BYTES", "OPAQUE_BYTES", "Floats", "Layout", "part_layout"]

OPAQUE_BYTES = 1 << 20
"""Pieces of what is no floats."""

MAX_GROUP_BYTES = 64 << 20
"""No piece is larger, whatever a file says: what bounds the memory of encoder and decoder."""

_CHUNK_BYTES = 2 << 20
_GROUP_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Floats:
    """A contiguous row-major tensor [rows, slots, channels] of `dtype` that starts at byte `start` of a file.

    Raises:
        FormatError: a dimension is not positive, or it cannot be coded as floats: see `codable`.
    """

    start: int
    dtype: str
    rows: int
    slots: int
    channels: int

    def __post_init__(self) -> None:
        if min(self.rows, self.slots, self.channels) < 1 or self.start < 0:
            raise FormatError(f"floats [{self.rows}, {self.slots}, {self.channels}] at byte {self.start}")
        if not self.codable(self.dtype, self.slots, self.channels):
            raise FormatError(f"rows of [{self.slots}, {self.channels}] {self.dtype} cannot be coded as floats")

    @staticmethod
    def codable(dtype: str, slots: int, channels: int) -> bool:
        """Whether a codec knows the type and a row is not too large for it."""
        words = WORDS.get(dtype)
        return (
            words is not None and channels <= MAX_BLOCK_BYTES and slots * channels * words.itemsize <= MAX_GROUP_BYTES
        )

    @property
    def words(self) -> Words:
        """How the type lies in its word."""
        return WORDS[self.dtype]

    @property
    def row_bytes(self) -> int:
        """Of one row of all slots."""
        return self.slots * self.channels * self.words.itemsize

    @property
    def stop(self) -> int:
        """Byte behind the tensor."""
        return self.start + self.rows * self.row_bytes

    @property
    def group_rows(self) -> int:
        """Rows coded together: 2 MiB of each slot, 8 MiB of all slots at most."""
        slot_row_bytes = self.channels * self.words.itemsize
        rows = max(1, min(_CHUNK_BYTES // slot_row_bytes, _GROUP_BYTES // self.row_bytes))
        step = block_rows(self.channels)
        return rows // step * step if rows > step else rows


@dataclass(frozen=True, slots=True)
class Layout:
    """A file of `size` bytes with the floats in it, ascending; everything between them is opaque.

    Raises:
        FormatError: floats overlap or reach beyond the file.
    """

    size: int
    floats: tuple[Floats, ...] = ()

    def __post_init__(self) -> None:
        at = 0
        for tensor in self.floats:
            if tensor.start < at or tensor.stop > self.size:
                raise FormatError(
                    f"floats at {tensor.start} to {tensor.stop} of a file of {self.size} bytes, after {at}"
                )
            at = tensor.stop

    def pieces(self) -> Iterator[tuple[int, int, Floats | None]]:
        """The file as a codec takes it: start, byte count and the floats that the piece holds whole rows of."""
        at = 0
        for tensor in self.floats:
            yield from _cut(at, tensor.start, OPAQUE_BYTES, None)
            yield from _cut(tensor.start, tensor.stop, tensor.group_rows * tensor.row_bytes, tensor)
            at = tensor.stop
        yield from _cut(at, self.size, OPAQUE_BYTES, None)

    @classmethod
    def of(cls, size: int, tensors: Iterable[Floats]) -> Layout:
        """Of tensors in any order."""
        return cls(size, tuple(sorted(tensors, key=lambda tensor: tensor.start)))


def _cut(start: int, stop: int, step: int, floats: Floats | None) -> Iterator[tuple[int, int, Floats | None]]:
    return ((at, min(step, stop - at), floats) for at in range(start, stop, step))


def part_layout(info: PartInfo, size: int) -> Layout:
    """Layout of a part file of `size` bytes.

    Raises:
        FormatError: the part says that its states reach beyond the file.
    """
    spec = info.hidden_states.spec
    if 0 in spec.shape or not Floats.codable(spec.dtype, spec.shape[1], spec.shape[2]):
        return Layout(size)
    return Layout(size, (Floats(info.hidden_states.offset, spec.dtype, *spec.shape),))
