"""Part files out of host memory: temporary name → vectored write → rename, on threads of their own.

A write that fails is never retried: the temporary is removed, the rid goes to the failure ring, and nothing more of it
is written, so that the client learns of it at once and no half record stays behind.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hs_formats.durable import write_all
from hs_formats.failure_ring import FailureRing
from hs_formats.names import temporary_name
from hs_formats.part import PartMeta, part_pieces
from hs_server.capture.ring import RingSlot

__all__ = ["Chunk", "FailedRids", "PartJob", "PartWriter", "write_part"]

logger = logging.getLogger(__name__)

_REMEMBERED_RIDS = 65536


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows [at, at + rows) of a ring slot, there once `arrived` returns. Its maker has retained the slot for it."""

    slot: RingSlot
    at: int
    rows: int
    arrived: Callable[[], None]


@dataclass(frozen=True, slots=True)
class PartJob:
    """A part whose rows are in the ring or on their way to it, in the order of `chunks`."""

    meta: PartMeta
    input_ids: bytes
    chunks: tuple[Chunk, ...]

    def states(self) -> list[memoryview]:
        """The rows' bytes, once all of them have arrived.

        Raises:
            RuntimeError: the device failed.
        """
        for chunk in self.chunks:
            chunk.arrived()
        return [chunk.slot.view(chunk.at, chunk.rows) for chunk in self.chunks]

    def release(self) -> None:
        """Give the ring slots back."""
        for chunk in self.chunks:
            chunk.slot.release()


class FailedRids:
    """The requests the capture gave up, in memory and in the failure ring. Safe for use from several threads."""

    def __init__(self, ring: FailureRing) -> None:
        self._ring = ring
        self._rids: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """Requests given up so far."""
        return self._ring.count

    def __contains__(self, rid: str) -> bool:
        with self._lock:
            return rid in self._rids

    def add(self, rid: str, reason: str) -> None:
        """Give up `rid`; the first reason is kept."""
        with self._lock:
            if rid in self._rids:
                return
            self._rids[rid] = None
            if len(self._rids) > _REMEMBERED_RIDS:
                self._rids.popitem(last=False)
            try:
                self._ring.record(rid, reason)
            except OSError:
                logger.exception("hs-extract: the failure record of %s could not be written", rid)
            count = self._ring.count
        if count & (count - 1) == 0:  # 1st, 2nd, 4th, ...: loud, without flooding the server's log
            logger.warning("hs-extract: %d requests not captured so far; the last is %s: %s", count, rid, reason)


def write_part(folder: Path, job: PartJob) -> int:
    """Write one part file; it appears under its name whole or not at all. Returns its size in bytes.

    Raises:
        OSError: nothing is left behind.
        RuntimeError: the device failed before the rows had arrived.
    """
    name = job.meta.name
    temporary = folder / temporary_name(name, job.meta.nonce)
    pieces = part_pieces(job.meta, input_ids=job.input_ids, hidden_states=job.states())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            size = write_all(fd, pieces)
        finally:
            os.close(fd)
        temporary.rename(folder / str(name))
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return size


class PartWriter:
    """Writer threads behind a queue. `files`, `bytes_written` count what was written.

    The queue itself is unbounded; whoever fills it bounds the memory that the jobs hold.
    """

    def __init__(self, folder: Path, failed: FailedRids, *, threads: int) -> None:
        self.files = 0
        self.bytes_written = 0
        self._folder = folder
        self._failed = failed
        self._jobs: queue.SimpleQueue[PartJob | None] = queue.SimpleQueue()
        self._count = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"hs-writer-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: PartJob) -> None:
        """Queue a job."""
        self._jobs.put(job)

    def close(self) -> None:
        """Write what is queued and end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if job.meta.rid not in self._failed:
                    size = write_part(self._folder, job)
                    with self._count:
                        self.files += 1
                        self.bytes_written += size
            except Exception as error:  # noqa: BLE001  # a writer thread must outlive any fault of one part
                self._failed.add(job.meta.rid, f"part not written: {error}")
            finally:
                job.release()
                del job
