"""The way without groups: each file is written, synced, renamed, noted and unlinked before the next is begun.

Usage: python -m benchmarks.mover.one_by_one SRC DST
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["main"]


def main(src: Path, dst: Path) -> None:
    """Move all of `src` to `dst`."""
    log = os.open(dst / "manifest.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    for path in sorted(src.glob("*.pt")):
        data = path.read_bytes()
        temporary = dst / f".{path.name}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(fd, data)
        os.fsync(fd)
        os.close(fd)
        temporary.rename(dst / path.name)
        folder = os.open(dst, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.fsync(folder)
        os.close(folder)
        os.write(log, f'{{"part": "{path.name}", "raw_bytes": {len(data)}}}\n'.encode())
        os.fdatasync(log)
        path.unlink()
    os.close(log)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
