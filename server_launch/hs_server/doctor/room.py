"""Room in scratch for the canaries' parts, promised where clients see it, so that neither takes the other's."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

from hs_formats.control import (
    CLIENT_GRACE_S,
    STALE_S,
    ClientState,
    ControlFolder,
    Marker,
    now_s,
    used_bytes,
)
from hs_formats.errors import FormatError, StorageError
from hs_formats.names import CANARY_RUN
from hs_formats.part import PART_OVERHEAD_BYTES

__all__ = ["Promise", "record_bytes", "room_limit"]

_ID_BYTES = 8
_LEFT_FREE = 0.05


def record_bytes(marker: Marker, n: int, *, copies: int) -> int:
    """What `copies` copies of a record of `n` tokens take in scratch at most."""
    chunks = 1 + (-(-n // marker.chunk_size) if marker.chunk_size > 0 else 1)
    ranks = max(copies, len(marker.expected_ranks))
    return copies * n * (marker.bytes_per_token + _ID_BYTES) + ranks * chunks * PART_OVERHEAD_BYTES


def room_limit(control: ControlFolder) -> int:
    """Fill of scratch up to which may be written: the mover's limit, or nearly all where none is alive.

    Raises:
        OSError: scratch is gone.
    """
    try:
        mover = control.read_mover()
    except (FormatError, OSError):
        mover = None
    if mover is not None and mover.alive(now_s()):
        return mover.limit_bytes
    found = os.statvfs(control.scratch)
    return int((used_bytes(found) + found.f_bavail * found.f_frsize) * (1 - _LEFT_FREE))


class Promise:
    """The promise of the canary run; a context manager that withdraws it.

    Raises:
        OSError: scratch has no room for the record.
    """

    def __init__(self, control: ControlFolder) -> None:
        self._control = control
        self._record = control.client_record(CANARY_RUN)
        self._write(0)
        self._claim = os.open(self._record.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(self._claim, fcntl.LOCK_EX)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._record.close()
        os.close(self._claim)
        self._control.remove_client(CANARY_RUN)

    def take(self, need_bytes: int, *, timeout_s: float, pause: Callable[[float], None]) -> None:
        """Promise `need_bytes`, waiting up to `timeout_s` until they fit.

        Raises:
            StorageError: they do not.
            OSError: scratch is gone.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._control.credit():
                at_s = now_s()
                others = sum(
                    client.promised_bytes
                    for client in self._control.read_clients()
                    if client.run != CANARY_RUN and at_s - client.heartbeat_s < STALE_S + CLIENT_GRACE_S
                )
                used = used_bytes(os.statvfs(self._control.scratch))
                limit = room_limit(self._control)
                if used + others + need_bytes <= limit:
                    self._write(need_bytes)
                    return
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"no room for canary requests in {self._control.scratch}: {need_bytes:,} bytes needed, "
                    f"{used:,} used and {others:,} promised of {limit:,}\n"
                    "  wait for the mover, make room, or give scratch more"
                )
            pause(0.1)

    def _write(self, promised_bytes: int) -> None:
        self._record.write(
            asdict(ClientState(run=CANARY_RUN, pid=os.getpid(), heartbeat_s=now_s(), promised_bytes=promised_bytes))
        )
