"""Stored parts: what the mover makes of a `.pt` file, and how to get its bytes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_formats import zstd
from hs_formats.errors import FormatError

__all__ = ["CODECS", "Codec", "codec_of", "read_stored"]


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to store a part: a name, the suffix of its files and both directions.

    `encode(blocks, size)` yields the stored bytes of a file of `size` bytes given in blocks; `decode` is its inverse.
    """

    name: str
    suffix: str
    encode: Callable[[Iterable[bytes | memoryview], int], Iterator[bytes | memoryview]]
    decode: Callable[[bytes], bytes]


def _pass(blocks: Iterable[bytes | memoryview], size: int) -> Iterator[bytes | memoryview]:
    del size
    yield from blocks


CODECS: Mapping[str, Codec] = {
    "zstd": Codec("zstd", ".pt.zst", zstd.compress_blocks, zstd.decompress),
    "none": Codec("none", ".pt", _pass, bytes),
}
"""By the name that ``--codec`` takes."""


def codec_of(name: str) -> Codec:
    """The codec that wrote a stored file, by its suffix.

    Raises:
        FormatError: no codec uses the suffix.
    """
    for codec in CODECS.values():
        if name.endswith(codec.suffix):
            return codec
    raise FormatError(f"{name!r} has the suffix of no codec ({', '.join(c.suffix for c in CODECS.values())})")


def read_stored(path: Path) -> bytes:
    """The original bytes of a stored part, decoded and checked by its codec.

    Raises:
        FormatError: the file is damaged or of no known codec.
        OSError: it cannot be read.
    """
    codec = codec_of(path.name)
    try:
        return codec.decode(path.read_bytes())
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
