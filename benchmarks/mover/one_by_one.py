"""Storing files without encoding or checking them, so that only the syncs differ: one by one, or in the mover's groups.

Usage: python -m benchmarks.mover.one_by_one SRC DST [--grouped]

One by one, each file is written, synced, renamed, noted and unlinked before the next is begun. Grouped, files are
written one after the other while `hs_mover.syncer` does the syncs and renames of those before, and a third thread
writes and syncs the lines of all that are through and unlinks them: as in the mover.
"""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.checkout import make_importable

make_importable()

from hs_mover.meter import Meter  # noqa: E402 - its path has just been made
from hs_mover.syncer import MAX_GROUP, Syncer  # noqa: E402
from hs_mover.task import Identity, Outcome  # noqa: E402
from hs_mover.written import write_file  # noqa: E402

__all__ = ["grouped", "one_by_one"]


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    data = os.read(fd, os.fstat(fd).st_size)
    os.close(fd)
    return data


def _note(log: int, sizes: Sequence[tuple[str, int]]) -> None:
    os.write(log, "".join(f'{{"part": "{name}", "raw_bytes": {size}}}\n' for name, size in sizes).encode())
    os.fdatasync(log)


def one_by_one(paths: Sequence[Path], dst: Path, log: int) -> None:
    """Move `paths` to `dst`."""
    for path in paths:
        data = _read(path)
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
    stored: queue.SimpleQueue[tuple[Path, int] | Exception] = queue.SimpleQueue()
    room = threading.Semaphore(2 * MAX_GROUP)
    errors: list[Exception] = []

    def done(path: Path, size: int, error: Exception | None) -> None:
        stored.put(error or (path, size))

    noting = threading.Thread(target=_note_all, args=(len(paths), log, stored, room, errors))
    noting.start()
    for path in paths:
        room.acquire()
        data = _read(path)
        written = write_file(dst / path.name, [data], mover_id="bench", meter=meter)
        outcome = Outcome(identity=Identity(0, 0, 0, 0), line=None, written=written, folders=(dst,))
        syncer.submit(outcome, functools.partial(done, path, len(data)))
    noting.join()
    syncer.close()
    if errors:
        raise errors[0]


def _note_all(
    count: int,
    log: int,
    stored: queue.SimpleQueue[tuple[Path, int] | Exception],
    room: threading.Semaphore,
    errors: list[Exception],
) -> None:
    """Note and unlink `count` files as they come."""
    while count:
        group = [stored.get()]
        with suppress(queue.Empty):
            while True:
                group.append(stored.get_nowait())
        files = [item for item in group if not isinstance(item, Exception)]
        errors.extend(item for item in group if isinstance(item, Exception))
        _note(log, [(path.name, size) for path, size in files])
        for path, _ in files:
            path.unlink()
        count -= len(group)
        room.release(len(group))


def main(src: Path, dst: Path, move: Callable[[Sequence[Path], Path, int], None]) -> None:
    """Move all of `src` to `dst`."""
    log = os.open(dst / "manifest.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    move(sorted(src.glob("*.pt")), dst, log)
    os.close(log)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), grouped if "--grouped" in sys.argv else one_by_one)
