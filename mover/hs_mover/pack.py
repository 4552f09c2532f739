"""`hs-mover pack` and `unpack`: any one file through a codec and back, without a mover."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

from hs_formats.durable import fsync_folder, write_all
from hs_formats.errors import FormatError, HsError, StorageError, UsageError
from hs_formats.hsz_decode import HszFile, pread
from hs_formats.hsz_index import HEAD_BYTES, read_head
from hs_formats.layout import Layout
from hs_formats.sniff import sniff_layout
from hs_formats.stored import CODECS
from hs_formats.zstd import FRAME_MAGIC, decompress_blocks

__all__ = ["pack_file", "unpack_file"]

T = TypeVar("T")

_PROGRESS_FROM_BYTES = 256 << 20


class NotPacked(HsError):
    """{path} is not a whole packed file: {reason}"""


class NotWritten(StorageError):
    """{path} cannot be written: {reason}"""


class NotRead(StorageError):
    """{path} cannot be read: {reason}"""


def pack_file(source: Path, target: Path, *, codec: str, force: bool) -> str:
    """Pack any file; returns what to say about it.

    Args:
        source: a regular file. Floats are found in parts, `torch.save` archives and safetensors; others are bytes.
        target: appears by rename, whole.
        codec: name of any but ``none``.
        force: overwrite `target`.

    Raises:
        UsageError: `source` is no file, or `target` exists.
        StorageError: one of them cannot be read or written.
    """
    with _opened(source, target, force=force) as (file, size):
        layout = _reading(source, lambda: sniff_layout(file, size))
        blocks = _progress(_blocks(source, file.fileno(), layout), size, source.name)
        written = _write(target, CODECS[codec].encode(blocks, size, layout=layout))
    floats = sum(tensor.stop - tensor.start for tensor in layout.floats)
    found = f", {floats / size:.0%} of it floats" if floats else ""
    return f"{target}: {size:,} bytes in {written:,}, {size / max(1, written):.3f} to 1, codec {codec}{found}"


def unpack_file(source: Path, target: Path, *, force: bool) -> str:
    """Inverse of `pack_file`, for stored parts of any codec too; returns what to say about it.

    Raises:
        UsageError: `source` is no file, or `target` exists.
        NotPacked: `source` is damaged or no packed file; there is no `target` then.
        StorageError: one of them cannot be read or written.
    """
    with _opened(source, target, force=force) as (file, size):
        try:
            codec, original, blocks = _decoded(source, file.fileno(), size)
            written = _write(target, _progress(blocks, original, source.name))
        except FormatError as error:
            raise NotPacked(path=source, reason=error) from error
    return f"{target}: {written:,} bytes, checked, from {size:,}, codec {codec}"


def _decoded(source: Path, fd: int, size: int) -> tuple[str, int, Iterator[memoryview | bytes]]:
    """Codec, size of the original and its blocks."""

    def read_at(at: int, count: int) -> bytes:
        return _reading(source, lambda: pread(fd, at, count))

    head = read_at(0, min(size, HEAD_BYTES))
    if head[:4] == FRAME_MAGIC:
        original, blocks = decompress_blocks(read_at, size)
        return "zstd", original, blocks
    if len(head) == HEAD_BYTES:
        read_head(head)
    opened = HszFile(read_at, size)
    return opened.index.codec, opened.size, opened.blocks()


@contextmanager
def _opened(source: Path, target: Path, *, force: bool) -> Iterator[tuple[IO[bytes], int]]:
    try:
        fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for its writer
    except FileNotFoundError:
        raise UsageError(f"{source} does not exist") from None
    except OSError as error:
        raise NotRead(path=source, reason=error.strerror) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise UsageError(f"{source} is not a regular file")
    with os.fdopen(fd, "rb") as file:
        _check_target(target, found, force=force)
        yield file, found.st_size


def _check_target(target: Path, source: os.stat_result, *, force: bool) -> None:
    try:
        found = os.lstat(target)
    except OSError:  # not there; or the write will tell
        return
    if os.path.samestat(found, source):
        raise UsageError(f"{target} is the input itself")
    if not stat.S_ISREG(found.st_mode):
        raise UsageError(f"{target} is there and no regular file; name another")
    if not force:
        raise UsageError(f"{target} exists already; --force overwrites it")


def _blocks(source: Path, fd: int, layout: Layout) -> Iterator[bytes]:
    for start, count, _ in layout.pieces():
        yield _reading(source, functools.partial(pread, fd, start, count))


def _reading(source: Path, read: Callable[[], T]) -> T:
    """What `read` returns; whatever keeps it from reading is told with the file."""
    try:
        return read()
    except (OSError, FormatError) as error:
        raise NotRead(path=source, reason=error) from error


def _write(target: Path, pieces: Iterable[bytes | memoryview]) -> int:
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        written = 0
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            for piece in pieces:
                written += write_all(fd, [piece])
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(target)
        fsync_folder(target.parent)
    except OSError as error:
        raise NotWritten(path=target, reason=error.strerror or error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return written


def _progress(blocks: Iterable[bytes | memoryview], size: int, name: str) -> Iterator[bytes | memoryview]:
    """Shows how far it is, for big files on a terminal."""
    if size < _PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield from blocks
        return
    from tqdm import tqdm

    with tqdm(total=size, unit="B", unit_scale=True, desc=name, leave=False) as bar:
        for block in blocks:
            yield block
            bar.update(len(block))
