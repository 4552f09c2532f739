"""The run's own books, written in groups: all lines that wait share one write and one fdatasync."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from hs_client.errors import DestinationBroken
from hs_formats.dataset import DatasetPaths
from hs_formats.jsonl import AppendLog, Log
from hs_formats.ledger import Done
from hs_formats.location import ObjectUrl

__all__ = ["LedgerLog", "run_log"]

_RETRY_S = 1.0


class _Waiter:
    __slots__ = ("done", "lines")

    def __init__(self, lines: Sequence[msgspec.Struct]) -> None:
        self.lines = lines
        self.done = anyio.Event()


class LedgerLog:
    """Appends lines durably; `serve` must run as a task meanwhile.

    A destination that is full or away for a while is waited for: `trouble` then says why, and the lines are written
    when it is back. After `timeout_s` of that it is given up.

    Args:
        path: of the file, a ledger or what else a run keeps a book of; or its URL.
        timeout_s: how long the destination may be away.
        manifests: their folder. The client may read a mover's lines before the mover has synced them, and a *done* line
            must not outlive them, so they are synced first.
        trouble: how `trouble` reads.
        open_log: opens it where `path` is a URL.
    """

    def __init__(
        self,
        path: Path | ObjectUrl,
        *,
        timeout_s: float,
        manifests: Path | None = None,
        trouble: str = "the ledger {path} cannot be written: {reason}",
        open_log: Callable[[], Log] | None = None,
    ) -> None:
        self.path = path
        self._trouble_text = trouble
        self._manifests = manifests
        self.trouble = ""
        self._timeout_s = timeout_s
        self._open_log = open_log
        self._log: Log | None = None
        self._inode = 0
        self._written_bytes = 0
        self._waiting: list[_Waiter] = []
        self._writing = False
        self._wake = anyio.Event()

    @property
    def unwritten(self) -> bool:
        """Lines that `commit` was given are not on disk yet."""
        return self._writing or bool(self._waiting)

    async def commit(self, *lines: msgspec.Struct) -> None:
        """Return once `lines` are on disk."""
        waiter = _Waiter(lines)
        self._waiting.append(waiter)
        self._wake.set()
        await waiter.done.wait()

    async def serve(self) -> None:
        """Write what `commit` is given, for ever.

        Raises:
            DestinationBroken: the file could not be written for too long.
        """
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            group, self._waiting = self._waiting, []
            lines = [line for waiter in group for line in waiter.lines]
            self._writing = True
            await self._write(lines)
            self._writing = False
            for waiter in group:
                waiter.done.set()

    async def _write(self, lines: Sequence[msgspec.Struct]) -> None:
        give_up_s = anyio.current_time() + self._timeout_s
        while True:
            try:
                await anyio.to_thread.run_sync(self.write_now, lines)
            except OSError as error:
                self.trouble = self._trouble_text.format(path=self.path, reason=error.strerror or error)
                if anyio.current_time() >= give_up_s:
                    raise DestinationBroken(path=self.path, reason=error.strerror or error) from None
                await anyio.sleep(_RETRY_S)
            else:
                self.trouble = ""
                return

    def write_now(self, lines: Sequence[msgspec.Struct]) -> None:
        """Write `lines` durably from the calling thread; not while `serve` runs.

        Raises:
            OSError: they may be partly written.
            DestinationBroken: what was written before is gone.
        """
        if self._open_log is not None:
            # Kept open after an error: it tells the same lines, sent again, from new ones.
            self._log = self._log or self._open_log()
            self._log.append(lines)
            self._log.sync()
        elif isinstance(self.path, Path):
            self._write_file(self.path, lines)

    def _write_file(self, path: Path, lines: Sequence[msgspec.Struct]) -> None:
        # A removed destination would swallow what is appended to the open file.
        if self._log is not None and (not path.exists() or os.stat(path).st_ino != self._inode):
            self.close()
        if self._log is None:
            log = AppendLog(path)
            found = os.stat(path)
            if found.st_size < self._written_bytes:
                log.close()
                # Going on would leave records whose intents nobody knows, and call them done.
                raise DestinationBroken(path=path, reason="it was removed or cut while the run went on")
            self._log, self._inode = log, found.st_ino
        if self._manifests is not None and any(isinstance(line, Done) for line in lines):
            for manifest in self._manifests.glob("*.jsonl"):
                _sync(manifest)
        self._log.append(lines)
        self._log.sync()
        self._written_bytes = os.stat(path).st_size

    def close(self) -> None:
        """Close the file."""
        if self._log is not None:
            self._log.close()
            self._log = None


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def run_log(
    paths: DatasetPaths,
    book: str,
    run: str,
    *,
    timeout_s: float,
    trouble: str = "the ledger {path} cannot be written: {reason}",
) -> LedgerLog:
    """The log of `run` in `book`, ``ledger`` or ``responses``, wherever the dataset lies."""
    if isinstance(paths.location, ObjectUrl):
        return LedgerLog(
            paths.location / book / run,
            timeout_s=timeout_s,
            trouble=trouble,
            open_log=functools.partial(paths.open_log, book, run),
        )
    # Only a ledger has lines that must not outlive those of a manifest.
    manifests = paths.manifest if book == paths.ledger.name else None
    return LedgerLog(paths.root / book / f"{run}.jsonl", timeout_s=timeout_s, manifests=manifests, trouble=trouble)
