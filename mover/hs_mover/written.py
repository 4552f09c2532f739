"""Files in the destination under temporary names: written first, then synced, then put in place."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hs_formats.durable import write_all
from hs_mover.meter import Meter

__all__ = ["Written", "drop", "put_in_place", "sync_file", "temporary_suffix", "write_file"]

_GATHERED_BYTES = 1 << 20
"""Pieces are gathered up to about so many bytes, so that a small part is written by one call."""

_WRITE_BACK_BYTES = 8 << 20
"""The disk is set to work after so many bytes, so that the sync at the end has little left to wait for."""


def temporary_suffix(mover_id: str) -> str:
    """How the temporaries of one mover end."""
    return f".{mover_id}.tmp"


@dataclass(frozen=True, slots=True)
class Written:
    """A whole file that is not durable yet. `fd` is open: `put_in_place` or `drop` closes it."""

    fd: int
    temporary: Path
    final: Path
    size_bytes: int


def write_file(final: Path, pieces: Iterable[bytes | memoryview], *, mover_id: str, meter: Meter) -> Written:
    """Write a temporary beside `final`. It is removed again when anything fails.

    Args:
        final: where the file is to be.
        pieces: its bytes, each as it stays; time spent in making them counts as encoding.
        mover_id: names the temporary.
        meter: told where the time went.

    Raises:
        OSError: the destination failed.
    """
    temporary = final.with_name(f".{final.name}{temporary_suffix(mover_id)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(temporary, flags, 0o644)
    except FileExistsError:  # left by an earlier life of this mover
        temporary.unlink()
        fd = os.open(temporary, flags, 0o644)
    size_bytes = begun = 0
    try:
        lap_s = time.monotonic()
        for gathered in _gathered(pieces):
            encoded_s = time.monotonic()
            size_bytes += write_all(fd, gathered)
            if size_bytes - begun >= _WRITE_BACK_BYTES:
                begin_write_back(fd, begun, size_bytes - begun)
                begun = size_bytes
            written_s = time.monotonic()
            meter.add(encoding_s=encoded_s - lap_s, writing_s=written_s - encoded_s)
            lap_s = written_s
        begin_write_back(fd, begun, 0)
        meter.add(writing_s=time.monotonic() - lap_s)
    except BaseException:
        drop(Written(fd, temporary, final, size_bytes))
        raise
    return Written(fd, temporary, final, size_bytes)


def _gathered(pieces: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    waiting: list[bytes | memoryview] = []
    size_bytes = 0
    for piece in pieces:
        waiting.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _GATHERED_BYTES:
            yield waiting
            waiting, size_bytes = [], 0
    yield waiting


def begin_write_back(fd: int, offset: int, count: int) -> None:
    """Let the kernel write so many bytes (0: up to the end) from `offset` on, without waiting for it."""
    with suppress(OSError):  # a hint; it also drops what is on disk already from the page cache: nobody reads it soon
        os.posix_fadvise(fd, offset, count, os.POSIX_FADV_DONTNEED)


def sync_file(written: Written) -> None:
    """Make the bytes durable.

    Synced through the descriptor that wrote them: only that one is sure to be told of an earlier failed write.

    Raises:
        OSError: they are not.
    """
    os.fsync(written.fd)
    begin_write_back(written.fd, 0, 0)


def put_in_place(written: Written) -> None:
    """Give the file its final name and close it.

    Raises:
        OSError: it is removed; or it is in place and closing it failed.
    """
    try:
        written.temporary.rename(written.final)
    except OSError:
        drop(written)
        raise
    os.close(written.fd)


def drop(written: Written) -> None:
    """Close and remove a file that is not wanted. Never raises: what stays is removed at the next start."""
    with suppress(OSError):
        os.close(written.fd)
    with suppress(OSError):
        written.temporary.unlink()
