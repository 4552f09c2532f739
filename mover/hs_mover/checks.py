"""Reads a part once, in bounded blocks: its checksums, and the checks of its content that cost next to nothing.

Blocks of hidden states hold whole vectors (the H channels of one token in one slot), so that each check is a few numpy
calls over bit patterns: a float is NaN or infinite when its exponent bits are all ones, a vector is dead when all its
channels are equal. Nothing is mapped or unpickled: a file that shrinks meanwhile is an error, not a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.hashing import XXH3
from hs_formats.part import PartInfo

__all__ = ["BLOCK_BYTES", "BadPart", "PartDigest", "SourceChanged", "read_blocks"]

ReadAt = Callable[[int, int], bytes]

BLOCK_BYTES = 1 << 20

_PROBE_CHANNELS = 8
"""Channels compared first; only vectors that are equal in these are looked at whole."""


class BadPart(Exception):
    """The part must not be used; the text says why."""


class SourceChanged(Exception):
    """The file changed while it was read: it is not finished yet."""


@dataclass(frozen=True, slots=True)
class _Bits:
    unsigned: str
    signed: str
    sign: int
    infinity: int


_BITS = {
    "bfloat16": _Bits("<u2", "<i2", 0x8000, 0x7F80),
    "float16": _Bits("<u2", "<i2", 0x8000, 0x7C00),
    "float32": _Bits("<u4", "<i4", 0x80000000, 0x7F800000),
}


class PartDigest:
    """Checksums and findings of one pass over a part.

    `problem` is "" or the first thing wrong with the content, with the token and the slot.
    """

    def __init__(self, info: PartInfo | None) -> None:
        self.info = info
        self.problem = ""
        self._file = XXH3()
        self._rows = XXH3()
        self._ids = XXH3()
        self._vectors = 0

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

    def other(self, block: bytes) -> None:
        """Bytes between the tensors."""
        self._file.update(block)

    def ids(self, block: bytes) -> None:
        """Token ids, whole int64 values."""
        self._file.update(block)
        self._ids.update(block)
        if not self.problem and block:
            least = int(np.frombuffer(block, "<i8").min())
            if least < 0:
                self.problem = f"token id {least} is negative"

    def rows(self, block: bytes) -> None:
        """Hidden states, whole vectors."""
        self._file.update(block)
        self._rows.update(block)
        info = self.info
        if info is None or self.problem:
            return
        bits = _BITS[info.meta.dtype]
        vectors = np.frombuffer(block, bits.unsigned).reshape(-1, info.meta.hidden_size)
        found = _first_bad(vectors, bits)
        if found is not None:
            at, what = found
            row, slot = divmod(self._vectors + at, info.meta.slots)
            self.problem = f"token {info.meta.start + row}, slot {slot}: {what}"
        self._vectors += len(vectors)


def _first_bad(vectors: npt.NDArray[Any], bits: _Bits) -> tuple[int, str] | None:
    magnitude = vectors.dtype.type(bits.sign - 1)
    # Of the bit patterns, the largest as a signed number is the largest positive float, and the largest as an unsigned
    # number the largest negative one; two reductions, and no copy.
    most, least = int(vectors.view(bits.signed).max(initial=0)), int(vectors.max(initial=0))
    if most >= bits.infinity or least >= bits.infinity | bits.sign:
        magnitudes = (vectors & magnitude).max(axis=1)
        at = int((magnitudes >= bits.infinity).argmax())
        return at, "NaN" if int(magnitudes[at]) > bits.infinity else "infinite"
    probe = vectors[:, :_PROBE_CHANNELS]
    suspects = np.flatnonzero((probe == probe[:, :1]).all(axis=1) | ((probe & magnitude) == 0).all(axis=1))
    for at in suspects.tolist():
        if not (vectors[at] & magnitude).any():
            return at, "all zero"
        if vectors.shape[1] > 1 and bool((vectors[at] == vectors[at, 0]).all()):
            return at, "all channels equal"
    return None


def _read_exactly(read_at: ReadAt, offset: int, count: int) -> Iterator[bytes]:
    while count:
        block = read_at(offset, count)
        if not block:
            raise SourceChanged(f"the file ends at byte {offset}")
        yield block
        offset += len(block)
        count -= len(block)


def read_blocks(
    read_at: ReadAt, size_bytes: int, digest: PartDigest, *, pace: Callable[[int], None]
) -> Iterator[bytes]:
    """The file's bytes in order, each block fed to `digest` first.

    Args:
        read_at: gives at most so many bytes (second) from an offset (first), like ``os.pread``.
        size_bytes: of the file.
        digest: takes the blocks.
        pace: called with the size of each block before it is read.

    Raises:
        SourceChanged: the file is shorter than `size_bytes`.
        OSError: it cannot be read.
    """
    info = digest.info
    spans: list[tuple[int, int, int, Callable[[bytes], None]]] = []
    if info is not None:
        states, ids = info.hidden_states, info.input_ids
        vector_bytes = states.spec.nbytes // (states.spec.shape[0] * states.spec.shape[1])
        step = max(vector_bytes, BLOCK_BYTES // vector_bytes * vector_bytes)
        spans = [
            (ids.offset, ids.spec.nbytes, BLOCK_BYTES, digest.ids),
            (states.offset, states.spec.nbytes, step, digest.rows),
        ]
        spans.sort(key=lambda span: span[0])
    at = 0
    for offset, length, step, feed in [*spans, (size_bytes, 0, 1, digest.other)]:
        for start, stop, size, use in (
            (at, offset, BLOCK_BYTES, digest.other),
            (offset, offset + length, step, feed),
        ):
            for begin in range(start, stop, size):
                count = min(size, stop - begin)
                pace(count)
                block = b"".join(_read_exactly(read_at, begin, count))
                use(block)
                yield block
        at = offset + length
