"""Stored parts: what the mover makes of a `.pt` file, and how to get its bytes back, all of them or a few.

The interface of every codec. To write: `CODECS[name].encode`. To read: `read_stored` for the whole original in memory,
`stored_blocks` for the whole in bounded blocks, `open_stored` for ranges of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hs_formats import zstd
from hs_formats.errors import FormatError
from hs_formats.hsz_decode import HszFile, ReadAt, pread
from hs_formats.hsz_encode import Facts, encode as encode_hsz
from hs_formats.hsz_index import HEAD_BYTES, read_head
from hs_formats.layout import OPAQUE_BYTES, Floats, Layout
from hs_formats.planes import Transform
from hs_formats.regular import open_regular, regular_fd
from hs_formats.statistics import SlotStatistics

__all__ = [
    "CODECS",
    "Codec",
    "Encode",
    "Facts",
    "Original",
    "Stored",
    "StoredObject",
    "codec_of",
    "open_stored",
    "read_stored",
    "stored_blocks",
    "stored_codec",
    "stored_size",
]

Block = bytes | bytearray | memoryview
Array = npt.NDArray[Any]


class StoredObject(Protocol):
    """A stored file that is no file here; `str` of it says where it is."""

    @property
    def name(self) -> str:
        """Its last component, with the codec's suffix."""
        ...

    def size_bytes(self) -> int:
        """Its size.

        Raises:
            OSError: it is missing or cannot be reached.
        """
        ...

    def read_at(self, at: int, count: int) -> bytes:
        """Exactly `count` bytes.

        Raises:
            FormatError: it ends before.
            OSError: it is missing or cannot be reached.
        """
        ...


Stored = Path | StoredObject
"""Where a stored file is."""


class Encode(Protocol):
    """The stored bytes of a file of `size` bytes given in blocks. Pieces that are no blocks stay as they are.

    With `layout` the codec knows where floats lie (else it takes the file for opaque); blocks that are just
    `Layout.pieces` are not copied. `facts` is called after the last block, by codecs that keep what it says. A block
    must stay as it is until the next is asked for.

    Raises:
        FormatError: the blocks do not add up to `size`.
    """

    def __call__(
        self,
        blocks: Iterable[Block],
        size: int,
        *,
        layout: Layout | None = None,
        facts: Callable[[], Facts] | None = None,
    ) -> Iterator[bytes | memoryview]: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to store a part: a name, the suffix of its files, and how to write one."""

    name: str
    suffix: str
    encode: Encode


class Original:
    """The original of a stored file, read where asked for; that of codecs without an index is kept in memory.

    Attributes:
        size: in bytes.
        xxh3: xxh3-128 that the stored file states; "" where it states none.
        statistics: of the slots of its hidden states; empty where the stored file has none.
    """

    size: int
    xxh3: str = ""
    statistics: Sequence[SlotStatistics] = ()

    def slot_bytes(self) -> Sequence[int]:
        """Stored bytes of each slot of the hidden states; empty where the codec does not store them apart."""
        return ()

    def read_into(self, start: int, out: memoryview | bytearray, *, verify: bool = True) -> None:
        """Bytes [start, start + len(out)).

        Args:
            start: byte of the original.
            out: writable.
            verify: False lets checksums of parts of the file be skipped, for callers that check the whole.

        Raises:
            FormatError: the stored file is damaged.
            ValueError: the range is not within the original.
            OSError: it cannot be read.
        """
        raise NotImplementedError

    def read_slot(self, floats: Floats, slot: int, start: int, out: Array) -> None:
        """Rows [start, start + len(out)) of one slot of a tensor of the original.

        Codecs with planes decode no other slot, ``none`` reads no other.

        Args:
            floats: where the tensor lies.
            slot: 0 to ``floats.slots - 1``.
            start: row.
            out: writable bit patterns [r, channels] of ``floats.words.dtype``; rows may be strided.

        Raises:
            FormatError: the stored file is damaged.
            ValueError: `out` does not fit, or the rows are not in the tensor.
            OSError: it cannot be read.
        """
        if not (0 <= slot < floats.slots and 0 <= start <= start + len(out) <= floats.rows):
            raise ValueError(f"rows {start} to {start + len(out)} of slot {slot}, of [{floats.rows}, {floats.slots}]")
        step = max(1, OPAQUE_BYTES // floats.row_bytes)
        for first in range(0, len(out), step):
            count = min(step, len(out) - first)
            block = bytearray(count * floats.row_bytes)
            self.read_into(floats.start + (start + first) * floats.row_bytes, block)
            words = np.frombuffer(block, floats.words.dtype).reshape(count, floats.slots, floats.channels)
            out[first : first + count] = words[:, slot]

    def read_all(self, out: memoryview | bytearray) -> None:
        """All of it, checked against `xxh3` where that is stated.

        Raises:
            FormatError: the stored file is damaged; `out` is to be thrown away.
            ValueError: `out` is not of its size.
            OSError: it cannot be read.
        """
        self.read_into(0, out)

    def blocks(self) -> Iterator[memoryview]:
        """All of it in bounded blocks; damage is known for certain only at the end.

        Raises:
            FormatError: the stored file is damaged.
            OSError: it cannot be read.
        """
        for start in range(0, self.size, OPAQUE_BYTES):
            block = memoryview(bytearray(min(OPAQUE_BYTES, self.size - start)))
            self.read_into(start, block)
            yield block


class _HszOriginal(Original):
    def __init__(self, file: HszFile) -> None:
        self._file = file
        self.size = file.size
        self.xxh3 = file.index.xxh3
        self.statistics = file.index.statistics

    def slot_bytes(self) -> Sequence[int]:
        # A part has one tensor with slots; of files with several nobody could say whose slots they are.
        return self._file.floats[0].slot_bytes() if len(self._file.floats) == 1 else ()

    def read_into(self, start: int, out: memoryview | bytearray, *, verify: bool = True) -> None:
        self._file.read_into(start, out, verify=verify)

    def read_slot(self, floats: Floats, slot: int, start: int, out: Array) -> None:
        for segment in self._file.floats:
            if segment.floats == floats:
                self._file.read_slot(segment, slot, start, out)
                return
        super().read_slot(floats, slot, start, out)

    def read_all(self, out: memoryview | bytearray) -> None:
        self._file.read_all(out)

    def blocks(self) -> Iterator[memoryview]:
        return self._file.blocks()


class _PlainOriginal(Original):
    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at = read_at
        self.size = size

    def read_into(self, start: int, out: memoryview | bytearray, *, verify: bool = True) -> None:
        del verify
        view = memoryview(out).cast("B")
        if not 0 <= start <= start + len(view) <= self.size:
            raise ValueError(f"bytes {start} to {start + len(view)} of {self.size}")
        view[:] = self._read_at(start, len(view))


def _pass(
    blocks: Iterable[Block], size: int, *, layout: Layout | None = None, facts: Callable[[], Facts] | None = None
) -> Iterator[bytes | memoryview]:
    del layout, facts
    seen = 0
    for block in blocks:
        seen += len(block)
        yield memoryview(block) if isinstance(block, bytearray) else block
    if seen != size:
        raise FormatError(f"{seen} bytes to store where {size} were announced")


def _plain(
    blocks: Iterable[Block], size: int, *, layout: Layout | None = None, facts: Callable[[], Facts] | None = None
) -> Iterator[bytes | memoryview]:
    del layout, facts
    return iter(zstd.compress_blocks(blocks, size))


def _planes(
    blocks: Iterable[Block],
    size: int,
    *,
    layout: Layout | None = None,
    facts: Callable[[], Facts] | None = None,
    codec: str,
    transform: Transform,
) -> Iterator[bytes | memoryview]:
    layout = Layout(size) if layout is None else layout
    if layout.size != size:
        raise FormatError(f"the layout is of {layout.size} bytes where {size} were announced")
    return encode_hsz(blocks, layout, codec=codec, transform=transform, facts=facts)


CODECS: Mapping[str, Codec] = {
    "default": Codec("default", ".pt.hsz", functools.partial(_planes, codec="default", transform="exponent")),
    "fast": Codec("fast", ".pt.hsz", functools.partial(_planes, codec="fast", transform="bytes")),
    "zstd": Codec("zstd", ".pt.zst", _plain),
    "none": Codec("none", ".pt", _pass),
}
"""By the name that ``--codec`` takes."""

_SUFFIXES = tuple(dict.fromkeys(codec.suffix for codec in CODECS.values()))


def codec_of(name: str) -> Codec:
    """A codec whose files have the suffix of a stored file; `stored_codec` tells those that share one apart.

    Raises:
        FormatError: no codec uses the suffix.
    """
    for codec in CODECS.values():
        if name.endswith(codec.suffix):
            return codec
    raise FormatError(f"{name!r} has the suffix of no codec ({', '.join(_SUFFIXES)})")


def stored_size(path: Stored) -> int:
    """Bytes of a stored file.

    Raises:
        OSError: it is missing or cannot be reached.
    """
    return path.stat().st_size if isinstance(path, Path) else path.size_bytes()


def stored_codec(path: Stored) -> str:
    """Name of the codec that wrote a stored file.

    Raises:
        FormatError: the file is of no known codec.
        OSError: it cannot be read.
    """
    codec = codec_of(path.name)
    if codec.suffix != ".pt.hsz":
        return codec.name
    with _named(path):
        if not isinstance(path, Path):
            return read_head(path.read_at(0, min(HEAD_BYTES, path.size_bytes())))
        with open_regular(path) as file:
            return read_head(file.read(HEAD_BYTES))


@contextmanager
def open_stored(path: Stored, *, limit_bytes: int | None = None) -> Iterator[Original]:
    """The original of a stored file. FormatError within the block is told with the file's name.

    Args:
        path: of the stored file.
        limit_bytes: size of the original at most, where that is known.

    Raises:
        FormatError: the file is damaged, of no known codec, or its original is too large.
        OSError: it cannot be read.
    """
    suffix = codec_of(path.name).suffix
    with _named(path), _opened(path) as (read_at, size):
        original = _original(suffix, read_at, size, limit_bytes)
        if limit_bytes is not None and original.size > limit_bytes:
            raise FormatError(f"holds {original.size} bytes, more than {limit_bytes}")
        yield original


@contextmanager
def _opened(path: Stored) -> Iterator[tuple[ReadAt, int]]:
    if not isinstance(path, Path):
        yield path.read_at, path.size_bytes()
        return
    fd = regular_fd(path)
    try:
        yield functools.partial(pread, fd), os.fstat(fd).st_size
    finally:
        os.close(fd)


def _original(suffix: str, read_at: ReadAt, size: int, limit_bytes: int | None) -> Original:
    if suffix == ".pt.hsz":
        return _HszOriginal(HszFile(read_at, size))
    if suffix == ".pt":
        return _PlainOriginal(read_at, size)
    content = memoryview(zstd.decompress(bytes(read_at(0, size)), limit_bytes=limit_bytes))
    return _PlainOriginal(lambda at, count: content[at : at + count], len(content))


def read_stored(path: Stored, *, limit_bytes: int | None = None) -> bytes:
    """The whole original of a stored file, decoded and checked by its codec.

    Raises:
        FormatError: the file is damaged, of no known codec, or its original is larger than `limit_bytes`.
        OSError: it cannot be read.
    """
    with open_stored(path, limit_bytes=limit_bytes) as original:
        data = bytearray(original.size)
        original.read_all(data)
        return bytes(data)


def stored_blocks(path: Stored) -> Iterator[memoryview]:
    """The same in bounded blocks, each of its own memory; they are good only once the last has come.

    Raises:
        FormatError: the file is damaged or of no known codec.
        OSError: it cannot be read.
    """
    with open_stored(path) as original:
        yield from original.blocks()


@contextmanager
def _named(path: Stored) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        if str(path) in str(error):
            raise
        raise FormatError(f"{path}: {error}") from error
