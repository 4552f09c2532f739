"""Reads a part once, in the pieces its codec takes: its checksums, statistics, and checks that cost next to nothing.

Pieces of hidden states hold whole rows, so that each check is a few numpy calls over bit patterns: a float is NaN or
infinite when its exponent bits are all ones, a vector (the H channels of one token in one slot) is dead when all its
channels are equal. Nothing is mapped or unpickled: a file that shrinks meanwhile is an error, not a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.container import TensorSpan
from hs_formats.hashing import XXH3
from hs_formats.layout import Layout, part_layout
from hs_formats.part import PartInfo
from hs_formats.statistics import StatesStatistics
from hs_formats.stored import Facts

__all__ = ["BadPart", "PartDigest", "ReadInto", "SourceChanged", "read_pieces"]

ReadInto = Callable[[memoryview, int], int]
"""Reads into a buffer (first) from an offset (second) on, and says how many bytes came: 0 at the end."""

_STEP_BYTES = 1 << 20
"""Read and looked at together: what was just read is still in the processor's cache."""

_ID_BYTES = 8
_TELLING_CHANNELS = 4


class BadPart(Exception):
    """The part must not be used; the text says why."""


class SourceChanged(Exception):
    """The file changed while it was read: it is not finished yet."""


@dataclass(frozen=True, slots=True)
class _Bits:
    word: str
    magnitude: int
    infinity: int


_BITS = {
    "bfloat16": _Bits("<u2", 0x7FFF, 0x7F80),
    "float16": _Bits("<u2", 0x7FFF, 0x7C00),
    "float32": _Bits("<u4", 0x7FFFFFFF, 0x7F800000),
}


class PartDigest:
    """Checksums and findings of one pass over a part.

    `problem` is "" or the first thing wrong with the content, with the token and the slot.

    Args:
        info: of a part whose dtype is known here; None for a file of unknown layout, which is only hashed.
    """

    def __init__(self, info: PartInfo | None) -> None:
        self.info = info
        self.problem = ""
        self._file = XXH3()
        self._rows = XXH3()
        self._ids = XXH3()
        self._cut_id = b""
        self._vectors = 0
        self._statistics: StatesStatistics | None = None
        if info is not None:
            rows, slots, channels = info.hidden_states.spec.shape
            self._statistics = StatesStatistics(info.meta.dtype, rows, slots, channels)

    @property
    def xxh3(self) -> str:
        """Of the whole file."""
        return self._file.hexdigest()

    @property
    def rows_xxh3(self) -> str:
        """Of the bytes of the hidden states; "" for a file whose layout is unknown."""
        return "" if self.info is None else self._rows.hexdigest()

    @property
    def ids_xxh3(self) -> str:
        """Of the int64 token ids; "" for a file whose layout is unknown."""
        return "" if self.info is None else self._ids.hexdigest()

    def facts(self) -> Facts:
        """What codecs keep of it, once the file was read to its end."""
        return Facts(self.xxh3, [] if self._statistics is None else self._statistics.result())

    def layout(self, size_bytes: int) -> Layout:
        """The pieces to read a file of `size_bytes` in."""
        return Layout(size_bytes) if self.info is None else part_layout(self.info, size_bytes)

    def add(self, start: int, piece: memoryview, *, states: bool) -> None:
        """The next bytes of the file, which begin at `start`; `states`: they are whole rows of hidden states."""
        self._file.update(piece)
        if self.info is None:
            return
        if states:
            self._rows.update(piece)
            self._look(piece)
        else:
            self._add_ids(_overlap(start, piece, self.info.input_ids))

    def _add_ids(self, part: memoryview) -> None:
        if not len(part):
            return
        self._ids.update(part)
        data = self._cut_id + bytes(part)
        whole = len(data) // _ID_BYTES * _ID_BYTES
        self._cut_id = data[whole:]
        least = int(np.frombuffer(data[:whole], "<i8").min(initial=0))
        if least < 0 and not self.problem:
            self.problem = f"token id {least} is negative"

    def _look(self, piece: memoryview) -> None:
        info, statistics = self.info, self._statistics
        if info is None or statistics is None or self.problem:
            return
        statistics.add(piece)
        bits = _BITS[info.meta.dtype]
        vectors = np.frombuffer(piece, bits.word).reshape(-1, info.meta.hidden_size)
        found = _first_bad(vectors, bits, finite=statistics.finite)
        if found is not None:
            at, what = found
            row, slot = divmod(self._vectors + at, info.meta.slots)
            self.problem = f"token {info.meta.start + row}, slot {slot}: {what}"
        self._vectors += len(vectors)


def _overlap(start: int, piece: memoryview, span: TensorSpan) -> memoryview:
    first = max(0, span.offset - start)
    last = max(first, min(len(piece), span.offset + span.spec.nbytes - start))
    return piece[first:last]


def _first_bad(vectors: npt.NDArray[Any], bits: _Bits, *, finite: bool) -> tuple[int, str] | None:
    magnitude = vectors.dtype.type(bits.magnitude)
    if not finite:
        magnitudes = (vectors & magnitude).max(axis=1)
        at = int((magnitudes >= bits.infinity).argmax())
        return at, "NaN" if int(magnitudes[at]) > bits.infinity else "infinite"
    # A dead vector is dead in its first channels too, and few others are.
    first = vectors[:, :_TELLING_CHANNELS] & magnitude
    suspects = np.flatnonzero((first == first[:, :1]).all(axis=1))
    if not len(suspects):
        return None
    suspected = vectors[suspects]
    zero = ~(suspected & magnitude).any(axis=1)
    dead = zero | (suspected == suspected[:, :1]).all(axis=1) if vectors.shape[1] > 1 else zero
    if not dead.any():
        return None
    at = int(dead.argmax())
    return int(suspects[at]), "all zero" if zero[at] else "all channels equal"


def read_pieces(
    read_into: ReadInto, size_bytes: int, digest: PartDigest, *, pace: Callable[[int], None]
) -> Iterator[memoryview]:
    """The file's bytes in order, in the pieces of `PartDigest.layout`, each fed to `digest` first.

    Each piece has memory of its own, so it stays as it is.

    Args:
        read_into: like ``os.preadv`` with one buffer.
        size_bytes: of the file.
        digest: takes the pieces.
        pace: called with a count of bytes before so many are read.

    Raises:
        SourceChanged: the file is shorter than `size_bytes`.
        OSError: it cannot be read.
    """
    layout = digest.layout(size_bytes)
    for start, count, floats in layout.pieces():
        buffer = np.empty(count, np.uint8).data  # no time spent on zeros
        step = _STEP_BYTES if floats is None else max(1, _STEP_BYTES // floats.row_bytes) * floats.row_bytes
        for at in range(0, count, step):
            part = buffer[at : min(at + step, count)]
            pace(len(part))
            _fill(part, read_into, start + at)
            digest.add(start + at, part, states=floats is not None)
        yield buffer


def _fill(part: memoryview, read_into: ReadInto, offset: int) -> None:
    at = 0
    while at < len(part):
        got = read_into(part[at:], offset + at)
        if not got:
            raise SourceChanged(f"the file ends at byte {offset + at}")
        at += got
