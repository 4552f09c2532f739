"""Writing the files of an export: several at a time, each whole or not at all, none twice.

``.hs-progress.jsonl`` has a line for each file that is in place. A file without its line is written again, which gives
the same bytes, so that an export killed at any moment goes on where it was and ends like an undisturbed one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import msgspec

from hs_client.export.errors import BadSample, CannotWrite
from hs_client.export.layout import ExportSample, Format, Unit
from hs_formats.durable import fsync_folder, make_folders
from hs_formats.jsonl import AppendLog, TailReader

__all__ = ["PROGRESS", "UnitDone", "Writer"]

PROGRESS = ".hs-progress.jsonl"


class UnitDone(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is in place: its path below the export, its size, and what the format says of it."""

    path: str
    size_bytes: int
    facts: dict[str, int] = {}


class Writer:
    """Writes units.

    Args:
        out: the export's folder.
        form: writes a unit's samples.
        load: gives a sample of the plan by its index; called in several threads.
        jobs: units in work at a time.
        done: called in the caller's thread for each unit that is in place, with the number of samples in it.
    """

    def __init__(
        self,
        out: Path,
        form: Format,
        load: Callable[[int], ExportSample],
        *,
        jobs: int,
        done: Callable[[Unit, UnitDone], None],
    ) -> None:
        self._out = out
        self._form = form
        self._load = load
        self._jobs = jobs
        self._done = done
        self.bad: list[BadSample] = []

    def run(self, units: Sequence[Unit]) -> None:
        """Write all units that are not in place; samples that cannot be exported are in `bad` afterwards.

        Raises:
            CannotWrite: the disk takes no more.
        """
        log_path = self._out / PROGRESS
        there = {line.path: line for line in TailReader[UnitDone](log_path, UnitDone).poll()}
        left: list[Unit] = []
        for unit in units:
            line = there.get(unit.path)
            if line is not None and _size(self._out / unit.path) == line.size_bytes:
                self._done(unit, line)
            else:
                left.append(unit)
        try:
            for folder in sorted({(self._out / unit.path).parent for unit in left}):
                make_folders(folder)
            with AppendLog(log_path) as log:
                self._write(iter(left), log)
                log.sync()
            for folder in sorted({(self._out / unit.path).parent for unit in units}):
                fsync_folder(folder)
        except OSError as error:
            raise CannotWrite(path=error.filename or self._out, reason=error.strerror or error) from None

    def _write(self, units: Iterator[Unit], log: AppendLog) -> None:
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="export")
        running: dict[Future[UnitDone], Unit] = {}
        try:
            while True:
                while len(running) < self._jobs and (unit := next(units, None)) is not None:
                    running[pool.submit(self._one, unit)] = unit
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    unit = running.pop(future)
                    try:
                        line = future.result()
                    except BadSample as error:
                        self.bad.append(error)
                        continue
                    log.append([line])
                    self._done(unit, line)
        finally:
            pool.shutdown(cancel_futures=True)

    def _one(self, unit: Unit) -> UnitDone:
        path = self._out / unit.path
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            facts = self._form.write(temporary, map(self._load, range(unit.first, unit.stop)))
            fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return UnitDone(path=unit.path, size_bytes=path.stat().st_size, facts=facts)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
