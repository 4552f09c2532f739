"""Prompts files as they come: plain, gzip, zstd, standard input. What is no JSON lines is refused with the way out."""

from __future__ import annotations

import gzip
import io
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import zstandard

from hs_client.errors import BadPrompts
from hs_formats.errors import FormatError, UsageError
from hs_formats.zstd_stream import ZstdReader

__all__ = ["DAMAGED", "STDIN", "InputFile", "open_inputs", "shown"]

STDIN = Path("-")

DAMAGED = (EOFError, FormatError, zlib.error)
"""What reading a damaged compressed file raises besides OSError."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE = tuple(bytes([0x50 + at, 0x2A, 0x4D, 0x18]) for at in range(16))
_OTHER = {
    b"PK\x03\x04": "it is a zip archive: unpack it first",
    b"BZh": "it is compressed with bzip2: unpack it, or compress it with gzip or zstd",
    b"\xfd7zXZ\x00": "it is compressed with xz: unpack it, or compress it with gzip or zstd",
    b"PAR1": "it is a Parquet file: write it as JSON lines first",
    b"\xff\xfe": "it is UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "it is UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`",
}
_BOM = b"\xef\xbb\xbf"
_LOOK_BYTES = 4096
_SPOOL_LEVEL = 1


def shown(path: Path) -> str:
    """`path` as text that can be printed and stored, also where its name is no UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True)
class InputFile:
    """A prompts file that may be read as often as needed.

    `name` is what the user calls it, `path` what is opened, `state` what tells whether it has changed since.
    """

    name: str
    path: Path
    state: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path, name: str = "") -> InputFile:
        """The file at `path` as it is now.

        Raises:
            OSError: it cannot be looked at.
        """
        return cls(name or shown(path), path, _state(path))

    def may_be_entered(self) -> bool:
        """It can be read from any byte on: it is not compressed.

        Raises:
            OSError: it cannot be read.
        """
        with self.path.open("rb") as file:
            return not _packed(file.read(4))

    def open(self, start: int = 0) -> IO[bytes]:
        """Its content, unpacked, from byte `start` on, which is 0 where it cannot be entered.

        Raises:
            OSError: it cannot be read. Reading may raise `DAMAGED` as well.
        """
        file = io.BufferedReader(io.FileIO(self.path), 1 << 20)
        try:
            magic = file.peek(4)[:4]
        except BaseException:
            file.close()
            raise
        packed = _packed(magic)
        if packed == "gzip":
            # The reader of the library closes `file` with itself only where it has opened it.
            file.close()
            return gzip.open(self.path, "rb")  # type: ignore[return-value]
        if packed == "zstd":
            return io.BufferedReader(ZstdReader(file), 1 << 20)
        if start:
            file.seek(start)
        return file

    def check_unchanged(self) -> None:
        """See that it is the file that was read first.

        Raises:
            BadPrompts: it has changed or is gone.
        """
        try:
            same = _state(self.path) == self.state
        except OSError as error:
            raise BadPrompts(path=self.name, reason=error.strerror or error) from None
        if not same:
            raise BadPrompts(path=self.name, reason="it changed while it was read; repeat the command")


def _packed(magic: bytes) -> Literal["", "gzip", "zstd"]:
    """How a file is compressed that begins with these four bytes."""
    if magic[:2] == _GZIP:
        return "gzip"
    return "zstd" if magic == _ZSTD or magic in _SKIPPABLE else ""


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def open_inputs(paths: Sequence[Path]) -> list[InputFile]:
    """The files that the user named, looked at; standard input (``-``) is first written to a file of its own.

    Raises:
        BadPrompts: one cannot be read or is not JSON lines.
        UsageError: standard input is named twice.
    """
    if list(paths).count(STDIN) > 1:
        raise UsageError("standard input (-) can be read once only")
    found = [_spooled() if path == STDIN else _existing(path) for path in paths]
    for file in found:
        _check_content(file)
    return found


def _existing(path: Path) -> InputFile:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadPrompts(path=shown(path), reason="not a file; pipe it in and give -")
        return InputFile.of(path)
    except FileNotFoundError:
        raise BadPrompts(path=shown(path), reason="no such file") from None
    except OSError as error:
        raise BadPrompts(path=shown(path), reason=error.strerror or error) from None


def _spooled() -> InputFile:
    """Standard input in a file without a name, which ends with the process. It is read twice, and may be large."""
    if sys.stdin is None or sys.stdin.isatty():
        raise BadPrompts(path="standard input", reason="it is the terminal: pipe something in")
    try:
        fd, name = tempfile.mkstemp(prefix="hs-client-")
        os.unlink(name)
        with os.fdopen(os.dup(fd), "wb") as raw:
            source = sys.stdin.buffer
            first = source.read(_LOOK_BYTES)
            raw_as_is = first.startswith((_GZIP, _ZSTD, *_OTHER))
            compressor = zstandard.ZstdCompressor(level=_SPOOL_LEVEL)
            writer = raw if raw_as_is else compressor.stream_writer(raw, closefd=False)
            while first:
                writer.write(first)
                first = source.read(1 << 20)
            if writer is not raw:
                writer.close()
    except OSError as error:
        raise BadPrompts(path="standard input", reason=error.strerror or error) from None
    return InputFile.of(Path(f"/proc/self/fd/{fd}"), "-")


def _check_content(file: InputFile) -> None:
    try:
        with file.open() as content:
            start = content.read(_LOOK_BYTES)
    except (OSError, *DAMAGED) as error:
        raise BadPrompts(path=file.name, reason=getattr(error, "strerror", None) or error) from None
    for magic, reason in _OTHER.items():
        if start.startswith(magic):
            raise BadPrompts(path=file.name, reason=reason)
    start = start.removeprefix(_BOM).lstrip()
    first, newline, _ = start.partition(b"\n")
    if newline and first.strip() == b"{":
        raise BadPrompts(
            path=file.name, reason="its rows span lines: make JSON lines of them with `jq -c . FILE > FILE.jsonl`"
        )
    if start.startswith(b"["):
        raise BadPrompts(
            path=file.name, reason="it is one JSON array: make JSON lines of it with `jq -c '.[]' FILE > FILE.jsonl`"
        )
