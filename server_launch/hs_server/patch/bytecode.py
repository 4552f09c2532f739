"""Compiled files of a source file: which there are, and whether Python would run one that is older than the source.

Python takes a compiled file where the source's modification time (in seconds) and size still fit, and some without
looking at the source at all. Where a file was restored with its old time, or an image was built with unchecked compiled
files, something else than the source runs.
"""

from __future__ import annotations

import importlib.util
import struct
from pathlib import Path

__all__ = ["compiled_files", "remove_compiled", "would_run"]

_HEADER_BYTES = 16
_HASH_BASED, _CHECKED = 1, 2


def compiled_files(source: Path) -> list[Path]:
    """All compiled files of `source`, of every interpreter and optimisation level."""
    folder = Path(importlib.util.cache_from_source(str(source))).parent
    return sorted(folder.glob(f"{source.stem}.*.pyc"))


def remove_compiled(source: Path) -> int:
    """Remove them; returns how many there were.

    Raises:
        OSError: one cannot be removed.
    """
    files = compiled_files(source)
    for file in files:
        file.unlink(missing_ok=True)
    return len(files)


def would_run(compiled: Path, source: Path) -> bool:
    """Whether Python, importing `source`, would run `compiled` instead of compiling anew.

    Raises:
        OSError: one of them cannot be read.
    """
    with compiled.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return False
    flags, mtime, size = struct.unpack("<4xIII", header)
    if flags & _HASH_BASED:
        expected = importlib.util.source_hash(source.read_bytes())
        return not flags & _CHECKED or header[8:] == expected
    stat = source.stat()
    return bool(mtime == int(stat.st_mtime) & 0xFFFFFFFF and size == stat.st_size & 0xFFFFFFFF)
