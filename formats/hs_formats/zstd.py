"""Every call of zstandard, in one place: whole files to one frame and back, nothing silently short.

Frames carry their content size and a checksum. Decoding refuses a cut frame, a frame without size or checksum, a
skippable frame, trailing bytes and a wrong size, which the library's own streaming readers let through.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from hs_formats.errors import FormatError

__all__ = ["DEFAULT_LEVEL", "compress_blocks", "decompress"]

DEFAULT_LEVEL = 1


def compress_blocks(blocks: Iterable[bytes | memoryview], size: int, *, level: int = DEFAULT_LEVEL) -> Iterator[bytes]:
    """One zstd frame of `size` content bytes, as pieces to be written one after the other.

    The context is made here, so the call may run in any thread.

    Raises:
        FormatError: `blocks` do not add up to `size`.
    """
    parameters = zstandard.ZstdCompressionParameters.from_level(level, write_checksum=True, write_content_size=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=size)
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


def decompress(data: bytes | memoryview) -> bytes:
    """Content of exactly one frame.

    Raises:
        FormatError: the frame is cut, damaged, without content size or checksum, or followed by something.
    """
    if bytes(data[:4]) != zstandard.FRAME_HEADER:  # the library takes a skippable frame for an empty one
        raise FormatError("not a zstd frame")
    try:
        size = zstandard.frame_content_size(data)
        if size < 0:
            raise FormatError("the zstd frame does not say its size")
        if not zstandard.get_frame_parameters(data).has_checksum:
            raise FormatError("the zstd frame has no checksum")
        decoder = zstandard.ZstdDecompressor().decompressobj()
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
