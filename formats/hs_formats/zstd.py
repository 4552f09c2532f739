"""Every call of libzstd, in one place: whole files and planes to frames and back, nothing silently short.

Frames carry their content size and a checksum. Decoding refuses a cut frame, a frame without size or checksum, a
skippable frame, trailing bytes and a wrong size, which the library's own streaming readers let through.

Planes are the byte planes of floats (see `hs_formats.planes`). Match finding does not help them, and costs most of the
time: `huffman_frame` leaves it out, so what remains is zstd's Huffman coder. A plane that does not compress at all goes
into a `RawFrame`, which is written in place and copied nowhere. Both are ordinary frames to any other decoder. Contexts
are kept one for each thread.

Two bindings of the same library: the one of Python's own standard library (of its backport, before Python 3.14) takes
any parameter by number, which Huffman coding alone needs; zstandard decodes from and to any buffer.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import xxhash
import zstandard

from hs_formats.errors import FormatError

if sys.version_info >= (3, 14):
    from compression import zstd as standard
else:
    from backports import zstd as standard

__all__ = [
    "DEFAULT_LEVEL",
    "FRAME_MAGIC",
    "MAX_BLOCK_BYTES",
    "RawFrame",
    "compress_blocks",
    "compressed_frame",
    "decompress",
    "decompress_blocks",
    "frame_content",
    "huffman_frame",
    "raw_frame",
    "skippable_frame",
    "skippable_payload",
]

Buffer = bytes | bytearray | memoryview

DEFAULT_LEVEL = 1

FRAME_MAGIC = zstandard.FRAME_HEADER
"""How a frame starts."""

MAX_BLOCK_BYTES = 128 << 10
"""Largest block of a frame, by the standard."""

_FED_BYTES = 4 << 10
"""Of a frame decoded in blocks, given to the library at once: a hostile block holds 2^15 times its own size at most."""

_SKIPPABLE = 0x184D2A50
_MAX_HEADER_BYTES = 18
_BLOCK_HEADER_BYTES = 3
_CHECKSUM_BYTES = 4
_RAW_HEADER = struct.Struct("<4sBI")
# Single segment, content size in four bytes, content checksum, no dictionary: see "Frame_Header_Descriptor", RFC 8878.
_RAW_DESCRIPTOR = 0xA4


_LITERALS, _HUFFMAN_CODED = 1002, 1
"""``ZSTD_c_literalCompressionMode`` and ``ZSTD_ps_enable``, in zstd.h among the experimental parameters."""

_HUFFMAN_ALONE = {
    standard.CompressionParameter.compression_level: 1,
    standard.CompressionParameter.strategy: standard.Strategy.fast,
    standard.CompressionParameter.window_log: 17,
    standard.CompressionParameter.hash_log: 6,
    standard.CompressionParameter.target_length: MAX_BLOCK_BYTES,
    standard.CompressionParameter.content_size_flag: 1,
    standard.CompressionParameter.checksum_flag: 1,
    _LITERALS: _HUFFMAN_CODED,
}
"""The fast strategy steps by `target_length` from one search for a match to the next, here out of the block. It would
also leave literals uncoded then, unless they are asked for."""


class _Contexts(threading.local):
    """What one thread needs: contexts must not be shared, and making one costs more than a small plane."""

    def __init__(self) -> None:
        self.huffman = standard.ZstdCompressor(options=_HUFFMAN_ALONE)
        self.plain = zstandard.ZstdCompressor(compression_params=_parameters(DEFAULT_LEVEL))
        self.decompressor = zstandard.ZstdDecompressor()


def _parameters(level: int) -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters.from_level(level, write_checksum=True, write_content_size=True)


_contexts = _Contexts()


def compress_blocks(blocks: Iterable[Buffer], size: int, *, level: int = DEFAULT_LEVEL) -> Iterator[bytes]:
    """One zstd frame of `size` content bytes, as pieces to be written one after the other.

    The context is made here, so the call may run in any thread.

    Raises:
        FormatError: `blocks` do not add up to `size`.
    """
    compressor = zstandard.ZstdCompressor(compression_params=_parameters(level)).compressobj(size=size)
    seen = 0
    for block in blocks:
        seen += memoryview(block).nbytes
        if seen > size:
            break
        piece = compressor.compress(block)
        if piece:
            yield piece
    if seen != size:
        raise FormatError(f"{seen} bytes to compress where {size} were announced")
    yield compressor.flush()


def decompress(data: Buffer, *, limit_bytes: int | None = None) -> bytes:
    """Content of exactly one frame.

    Raises:
        FormatError: the frame is cut, damaged, without content size or checksum, or followed by something; or it
            announces more than `limit_bytes`.
    """
    size = _checked_size(data)
    if limit_bytes is not None and size > limit_bytes:
        raise FormatError(f"the zstd frame announces {size} bytes, more than {limit_bytes}")
    try:
        decoder = _contexts.decompressor.decompressobj()
        content = decoder.decompress(data)
    except zstandard.ZstdError as error:
        raise FormatError(f"not a whole zstd frame: {error}") from error
    if not decoder.eof:
        raise FormatError("the zstd frame is cut")
    if decoder.unused_data:
        raise FormatError(f"{len(decoder.unused_data)} bytes follow the zstd frame")
    if len(content) != size:
        raise FormatError(f"the zstd frame holds {len(content)} bytes where {size} were announced")
    return content


def decompress_blocks(read_at: Callable[[int, int], Buffer], size: int) -> tuple[int, Iterator[bytes]]:
    """Content size of exactly one frame of `size` bytes, and the content in bounded blocks.

    Args:
        read_at: gives exactly so many bytes (second) from an offset (first).
        size: of the frame, and of all there is.

    Raises:
        FormatError: as `decompress`; blocks that came before it may be wrong.
    """
    announced = _checked_size(read_at(0, min(size, _MAX_HEADER_BYTES)))
    return announced, _decompressed(read_at, size, announced)


def _decompressed(read_at: Callable[[int, int], Buffer], size: int, announced: int) -> Iterator[bytes]:
    decoder = zstandard.ZstdDecompressor().decompressobj()
    seen = 0
    for start in range(0, size, _FED_BYTES):
        if decoder.eof:
            raise FormatError(f"{size - start} bytes follow the zstd frame")
        try:
            block = decoder.decompress(read_at(start, min(_FED_BYTES, size - start)))
        except zstandard.ZstdError as error:
            raise FormatError(f"not a whole zstd frame: {error}") from error
        seen += len(block)
        if decoder.unused_data or seen > announced:
            raise FormatError("more follows the zstd frame than its content")
        if block:
            yield block
    if not decoder.eof:
        raise FormatError("the zstd frame is cut")
    if seen != announced:
        raise FormatError(f"the zstd frame holds {seen} bytes where {announced} were announced")


def _checked_size(data: Buffer) -> int:
    """Content size of a frame that has one and a checksum."""
    if bytes(data[:4]) != FRAME_MAGIC:  # the library takes a skippable frame for an empty one
        raise FormatError("not a zstd frame")
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise FormatError("the zstd frame does not say its size")
        if not zstandard.get_frame_parameters(data).has_checksum:
            raise FormatError("the zstd frame has no checksum")
    except zstandard.ZstdError as error:
        raise FormatError(f"not a whole zstd frame: {error}") from error
    return size


def huffman_frame(plane: Buffer) -> bytes:
    """A frame of one plane, Huffman coded without a search for matches."""
    return _contexts.huffman.compress(plane, standard.ZstdCompressor.FLUSH_FRAME)


def compressed_frame(content: Buffer) -> bytes:
    """A frame of bytes of any kind."""
    return _contexts.plain.compress(content)


class RawFrame:
    """A frame of uncompressed blocks, to be filled in place, in order.

    Args:
        size: content bytes, less than 4 GiB.
        block_bytes: content of each block but the last, 1 to `MAX_BLOCK_BYTES`.

    Attributes:
        blocks: writable views of the content, in order; together they are the content.
    """

    def __init__(self, size: int, block_bytes: int) -> None:
        count = max(1, -(-size // block_bytes))
        length = _RAW_HEADER.size + count * _BLOCK_HEADER_BYTES + size + _CHECKSUM_BYTES
        self._data = np.empty(length, np.uint8).data  # no time spent on zeros
        self._digest = xxhash.xxh64()
        self.blocks: list[memoryview] = []
        view, at = self._data, _RAW_HEADER.size
        _RAW_HEADER.pack_into(view, 0, FRAME_MAGIC, _RAW_DESCRIPTOR, size)
        for number in range(count):
            length = min(block_bytes, size - number * block_bytes)
            header = length << 3 | (number == count - 1)  # block type 0: raw
            view[at : at + _BLOCK_HEADER_BYTES] = header.to_bytes(_BLOCK_HEADER_BYTES, "little")
            at += _BLOCK_HEADER_BYTES
            self.blocks.append(view[at : at + length])
            at += length

    def filled(self, number: int) -> None:
        """Take block `number` into the checksum; to be called for each in order, while it is in the cache."""
        self._digest.update(self.blocks[number])

    def close(self) -> memoryview:
        """The whole frame, once all blocks are filled."""
        self._data[-_CHECKSUM_BYTES:] = _low_bytes(self._digest.intdigest())
        return self._data


def raw_frame(content: Buffer, block_bytes: int) -> memoryview:
    """A copy of `content` as a `RawFrame`."""
    view = memoryview(content)
    frame = RawFrame(len(view), block_bytes)
    for number, block in enumerate(frame.blocks):
        block[:] = view[number * block_bytes : number * block_bytes + len(block)]
        frame.filled(number)
    return frame.close()


def _low_bytes(digest: int) -> bytes:
    return (digest & 0xFFFFFFFF).to_bytes(_CHECKSUM_BYTES, "little")


def _checksum(blocks: Iterable[memoryview]) -> bytes:
    digest = xxhash.xxh64()
    for block in blocks:
        digest.update(block)
    return _low_bytes(digest.intdigest())


def frame_content(frame: Buffer, size: int, *, verify: bool = True) -> list[memoryview]:
    """The content of exactly one frame as views in order; those of raw blocks lie in `frame` itself.

    Args:
        frame: the whole frame.
        size: of its content; nothing is decoded when the frame announces another.
        verify: False skips the checksum of frames of raw blocks, for callers that check the content otherwise.

    Raises:
        FormatError: the frame is damaged in any way.
    """
    announced = _checked_size(frame)
    if announced != size:
        raise FormatError(f"a zstd frame announces {announced} bytes where {size} belong")
    view = memoryview(frame)
    blocks = _raw_blocks(view, size)
    if blocks is None:
        try:
            content = _contexts.decompressor.decompress(view, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise FormatError(f"not a whole zstd frame: {error}") from error
        if len(content) != size:
            raise FormatError(f"a zstd frame holds {len(content)} bytes where {size} belong")
        return [memoryview(content)]
    if verify and _checksum(blocks) != view[-_CHECKSUM_BYTES:]:
        raise FormatError("a zstd frame is damaged: its checksum is wrong")
    return blocks


def _raw_blocks(frame: memoryview, size: int) -> list[memoryview] | None:
    """The blocks, if the frame is as `RawFrame` makes it; the library decodes all others."""
    if frame[4] != _RAW_DESCRIPTOR:
        return None
    at, end, blocks = _RAW_HEADER.size, len(frame) - _CHECKSUM_BYTES, list[memoryview]()
    while at + _BLOCK_HEADER_BYTES <= end:
        header = int.from_bytes(frame[at : at + _BLOCK_HEADER_BYTES], "little")
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        at += _BLOCK_HEADER_BYTES
        if kind or length > MAX_BLOCK_BYTES or at + length > end:
            return None
        blocks.append(frame[at : at + length])
        at += length
        if last:
            return blocks if at == end and sum(map(len, blocks)) == size else None
    return None


def skippable_frame(kind: int, payload: bytes) -> bytes:
    """A frame that decoders skip; `kind` is 0 to 15."""
    return struct.pack("<II", _SKIPPABLE + kind, len(payload)) + payload


def skippable_payload(kind: int, frame: Buffer) -> bytes:
    """Inverse of `skippable_frame`.

    Raises:
        FormatError: `frame` is not exactly one skippable frame of this kind.
    """
    view = memoryview(frame)
    if len(view) < 8 or struct.unpack_from("<II", view) != (_SKIPPABLE + kind, len(view) - 8):
        raise FormatError("not the skippable frame that belongs there")
    return bytes(view[8:])
