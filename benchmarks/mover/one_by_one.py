"""Storing files without encoding or checking them, so that only the syncs differ: one by one, or in the mover's groups.

Usage: python -m benchmarks.mover.one_by_one SRC DST [--grouped]

One by one, each file is written, synced, renamed, noted and unlinked before the next is begun. Grouped, 256 files are
written, then `hs_mover.syncer` does the syncs and renames, then their lines are written and synced together.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.checkout import make_importable

make_importable()

from hs_mover.meter import Meter  # noqa: E402 - its path has just been made
from hs_mover.syncer import MAX_GROUP, Syncer  # noqa: E402
from hs_mover.task import Identity, Outcome  # noqa: E402
from hs_mover.written import write_file  # noqa: E402

__all__ = ["grouped", "one_by_one"]


def _note(log: int, sizes: Sequence[tuple[str, int]]) -> None:
    os.write(log, "".join(f'{{"part": "{name}", "raw_bytes": {size}}}\n' for name, size in sizes).encode())
    os.fdatasync(log)


def one_by_one(paths: Sequence[Path], dst: Path, log: int) -> None:
    """Move `paths` to `dst`."""
    for path in paths:
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
        _note(log, [(path.name, len(data))])
        path.unlink()


def grouped(paths: Sequence[Path], dst: Path, log: int) -> None:
    """Move `paths` to `dst`."""
    meter = Meter()
    syncer = Syncer(meter)
    syncer.start()
    for first in range(0, len(paths), MAX_GROUP):
        group = paths[first : first + MAX_GROUP]
        waiting, errors = threading.Semaphore(0), list[Exception]()

        def done(
            error: Exception | None, *, waiting: threading.Semaphore = waiting, errors: list[Exception] = errors
        ) -> None:
            errors.extend([error] if error else [])
            waiting.release()

        outcomes: list[Outcome] = []
        for path in group:
            written = write_file(dst / path.name, [path.read_bytes()], mover_id="bench", meter=meter)
            outcomes.append(Outcome(identity=Identity(0, 0, 0, 0), line=None, written=written, folders=(dst,)))
        for outcome in outcomes:
            syncer.submit(outcome, done)
        for _ in outcomes:
            waiting.acquire()
        if errors:
            raise errors[0]
        _note(log, [(path.name, path.stat().st_size) for path in group])
        for path in group:
            path.unlink()
    syncer.close()


def main(src: Path, dst: Path, move: Callable[[Sequence[Path], Path, int], None]) -> None:
    """Move all of `src` to `dst`."""
    log = os.open(dst / "manifest.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    move(sorted(src.glob("*.pt")), dst, log)
    os.close(log)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), grouped if "--grouped" in sys.argv else one_by_one)
