"""A zstd file of any writer, read as a stream: one frame or several, with or without size, never silently short."""

from __future__ import annotations

import io
from typing import IO, Any

import zstandard

from hs_formats.errors import FormatError

__all__ = ["ZstdReader"]

_READ_BYTES = 2 << 10
"""Given to the library at once. A hostile block of 4 bytes is 128 KiB, so a step is 64 MiB at most, for a
moment twice."""

_WINDOW_BYTES = 1 << 31
"""As ``zstd --long=31`` writes."""


class ZstdReader(io.RawIOBase):
    """The content of a zstd file. The library's own readers take a cut file for one that ends there.

    Args:
        file: positioned at the first frame; closed with this one.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decoder = self._fresh()
        self._waiting = b""
        self._content = memoryview(b"")
        self._inside = False

    @staticmethod
    def _fresh() -> zstandard.ZstdDecompressionObj:
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).decompressobj()

    def readable(self) -> bool:
        """It is."""
        return True

    def close(self) -> None:
        """Close the file too."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Any, /) -> int:
        """As `io.RawIOBase.readinto`.

        Raises:
            FormatError: the file is damaged or ends inside a frame.
        """
        target = memoryview(buffer).cast("B")
        while not self._content:
            if not self._advance():
                return 0
        size = min(len(target), len(self._content))
        target[:size] = self._content[:size]
        self._content = self._content[size:]
        return size

    def _advance(self) -> bool:
        """Decode the next piece; False at the end."""
        piece = self._waiting or self._file.read(_READ_BYTES)
        self._waiting = b""
        if not piece:
            if self._inside:
                raise FormatError("the zstd file ends inside a frame: it was cut")
            return False
        try:
            self._content = memoryview(self._decoder.decompress(piece))
        except zstandard.ZstdError as error:
            raise FormatError(f"the zstd file is damaged: {error}") from None
        self._inside = not self._decoder.eof
        if self._decoder.eof:
            self._waiting = self._decoder.unused_data
            self._decoder = self._fresh()
        return True
