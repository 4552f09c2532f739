"""Append-only JSON lines: the manifest and the ledger are such files.

A line counts from the moment its newline is there. A crash can leave a torn last line: the next writer ends it with a
newline before it appends, readers skip a line that is no JSON and count it; nothing is ever overwritten.

The last key of each line is ``crc``, over what stands before it, so that a damaged line that still reads like a good
one can be told. Readers do not need it, and none but ``hs-client verify`` looks at it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import msgspec

from hs_formats.durable import fsync_folder, write_all
from hs_formats.errors import FormatError
from hs_formats.regular import open_regular, regular_fd

__all__ = ["UNREADABLE", "AppendLog", "Log", "TailReader", "crc_fits", "encode_line"]

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding JSON that somebody else has written may raise: what is nested too deeply is no `MsgspecError`."""

_BLOCK_BYTES = 8 << 20

Line = TypeVar("Line")

_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"\}\s*\Z')


def encode_line(line: msgspec.Struct) -> bytes:
    """`line` as it stands in a file, with its CRC and newline.

    Raises:
        UnicodeEncodeError: a text holds a lone surrogate, which UTF-8 cannot say.
    """
    body = msgspec.json.encode(line)[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def crc_fits(text: bytes) -> bool | None:
    """Whether a line of a file is what was written; None where it has no CRC."""
    match = _CRC.search(text)
    return None if match is None else zlib.crc32(text[: match.start()]) == int(match[1], 16)


class Log(Protocol):
    """One writer's end of a log of JSON lines, wherever it lies."""

    def append(self, lines: Iterable[msgspec.Struct]) -> None:
        """Take `lines`; call `sync` to make them durable."""
        ...

    def sync(self) -> None:
        """Wait until everything appended is durable.

        Raises:
            OSError: treat what was appended since the last `sync` as not written.
        """
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class AppendLog:
    """One writer's end of a JSON-lines file.

    While it is open it has a shared lock (flock) on the file, where the file system has locks, so that who wants to
    replace the file can tell, on whatever scratch the writer works.

    Raises:
        OSError: the file cannot be opened; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A link could lead the lines of a dataset that others may write into any file of ours.
        self._fd = regular_fd(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
        try:
            size = os.fstat(self._fd).st_size
            self._torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
            fsync_folder(path.parent)
            with contextlib.suppress(OSError):
                fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, lines: Iterable[msgspec.Struct]) -> None:
        """Write `lines` in one go; call `sync` to make them durable.

        Raises:
            FormatError: a text holds a lone surrogate, which UTF-8 cannot say; nothing was written.
            OSError: the lines may be partly written; a later append starts on a new line.
        """
        try:
            data = b"".join(map(encode_line, lines))
        except UnicodeEncodeError as error:
            raise FormatError(f"{self.path}: a line cannot be written: {error}") from error
        if not data:
            return
        torn, self._torn = self._torn, True
        write_all(self._fd, [b"\n" + data if torn else data])
        self._torn = False

    def sync(self) -> None:
        """Wait until everything appended is on disk (fdatasync).

        Raises:
            OSError: the disk failed; treat what was appended since the last `sync` as not written.
        """
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TailReader(Generic[Line]):
    """Reads a JSON-lines file as it grows; each complete line is returned once.

    `kind` is a Struct class or a tagged union of them. `keep` looks at a raw line and says whether it is wanted; others
    cost no decoding. `start_bytes`: where the first line to be read begins. `bad` counts complete lines that did not
    decode.
    """

    def __init__(
        self, path: Path, kind: Any, *, keep: Callable[[bytes], bool] | None = None, start_bytes: int = 0
    ) -> None:
        self.path = path
        self.bad = 0
        self._keep = keep
        self._decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(kind)
        self._offset = start_bytes
        self._rest = b""

    def poll(self) -> list[Line]:
        """Lines completed since the last call; none while the file does not exist.

        Raises:
            OSError: the file cannot be read.
        """
        lines: list[Line] = []
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                while data := file.read(_BLOCK_BYTES):
                    self._offset += len(data)
                    *complete, self._rest = (self._rest + data).split(b"\n")
                    self._decode(complete, lines)
        except FileNotFoundError:
            return []
        return lines

    def _decode(self, complete: Iterable[bytes], lines: list[Line]) -> None:
        for line in complete:
            if not line.strip() or (self._keep is not None and not self._keep(line)):
                continue
            try:
                lines.append(self._decoder.decode(line))
            except UNREADABLE:
                self.bad += 1
