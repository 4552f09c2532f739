"""``mover.json``: the mover's own thread that says every second that it lives, how full scratch is and what holds it.

It never touches the destination, so a disk that hangs does not stop the heartbeat, and it survives a scratch folder
that is full, removed or made anew.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hs_formats.control import HEARTBEAT_S, ControlFolder, MoverState, now_s, used_bytes
from hs_formats.fixed_record import FixedRecord
from hs_formats.memory import MemoryGroup, default_reserve, find_mounts, host_memory, in_memory, memory_groups
from hs_mover.config import MoverConfig
from hs_mover.deleted import deleted_files, describe
from hs_mover.headroom import FillHold, Space, headroom

__all__ = ["Gauges", "Heartbeat", "measure_space", "on_shared_memory_mount"]

_log = logging.getLogger(__name__)

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the mount is compared, nothing is made there
STUCK_S = 15.0
"""A moving thread that does not come round for this long waits for a destination that hangs."""

_MARKERS_S = 5.0
_DELETED_S = 10.0
_RATE_S = 5.0
_MAX_REASON = 600


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the moving thread tells the heartbeat; replaced as a whole.

    `turned_at_s`: when, on the monotonic clock, it last came round its loop.
    """

    backlog_parts: int = 0
    backlog_bytes: int = 0
    moved_parts: int = 0
    moved_bytes: int = 0
    stored_bytes: int = 0
    quarantined_parts: int = 0
    last_progress_s: float = 0.0
    left_alone_parts: int = 0
    codec: str = ""
    trouble: str = ""
    stopping: bool = False
    turned_at_s: float = float("inf")

    def summary(self) -> str:
        """What was moved and what waits, for the log."""
        return (
            f"{self.moved_parts} parts moved, {self.moved_bytes / 1e6:.1f} MB "
            f"({self.stored_bytes / 1e6:.1f} MB stored), {self.backlog_parts} waiting"
        )


def measure_space(folder: Path) -> Space:
    """Fill and free space of the file system under `folder`.

    Raises:
        OSError: the folder is gone.
    """
    found = os.statvfs(folder)
    return Space(
        used_bytes=used_bytes(found),
        free_bytes=found.f_bavail * found.f_frsize,
        total_inodes=found.f_files,
        free_inodes=found.f_favail,
    )


def on_shared_memory_mount(folder: Path) -> bool:
    """`folder` lies on the file system of /dev/shm.

    Raises:
        OSError: the folder is gone.
    """
    try:
        return _SHARED_MEMORY.stat().st_dev == folder.stat().st_dev
    except FileNotFoundError:
        return False


class Heartbeat:
    """Publishes the state of one scratch folder from a thread of its own between `start` and `stop`."""

    def __init__(
        self, control: ControlFolder, config: MoverConfig, mover_id: str, *, gauges: Callable[[], Gauges]
    ) -> None:
        self._control = control
        self._config = config
        self._mover_id = mover_id
        self._gauges = gauges
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._record: FixedRecord | None = None
        self._record_inode = 0
        self._fill = FillHold(config.high, config.low)
        self._mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
        self._mounts = find_mounts(self._mountinfo)
        self._server_pids: tuple[int, ...] = ()
        self._server_pids_at_s = -_MARKERS_S
        self._rates = _Rates()
        self._deleted_at_s = -_DELETED_S
        self._deleted_said = ""
        self._said = ""
        self._error: BaseException | None = None
        self.state: MoverState | None = None

    def start(self) -> None:
        """Publish once, then every second."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Publish the last state and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._beat()
        if self._record is not None:
            self._record.close()
            self._record = None

    def check(self) -> None:
        """Raises whatever ended the heartbeat's thread; a mover that cannot say that it lives must not go on."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._stop.wait(HEARTBEAT_S):
                self._beat()
        except BaseException as error:  # noqa: BLE001 - raised by `check`, in the moving thread
            self._error = error

    def _beat(self) -> None:
        try:
            self.state = self._measure()
            self._write(self.state)
        except (OSError, ValueError) as error:  # ValueError: a record too long, text in /proc that does not decode
            if str(error) != self._said:
                self._said = str(error)
                _log.warning("cannot write %s: %s", self._control.mover_file, error)
            if self._record is not None:
                self._record.close()
                self._record = None
        else:
            self._said = ""

    def _measure(self) -> MoverState:
        config, gauges = self._config, self._gauges()
        space = measure_space(self._control.scratch)
        reserve_bytes = config.reserve_bytes
        if reserve_bytes is None:
            shared = on_shared_memory_mount(self._control.scratch)
            total_bytes = space.used_bytes + space.free_bytes
            reserve_bytes = default_reserve(total_bytes, shared_memory_mount=shared)
        groups = self._groups() if in_memory(self._control.scratch, self._mountinfo) else []
        room = headroom(space, groups, reserve_bytes=reserve_bytes, high=config.high, low=config.low)
        silent_s = time.monotonic() - gauges.turned_at_s
        if silent_s >= STUCK_S:  # only a call into the destination can take this long
            reason = f"destination does not answer for {silent_s:.0f} s: check {config.dst}"
        else:
            filled = self._fill.update(room, space)
            if filled and self._fill.bytes_held:
                filled = "; ".join(filter(None, [filled, self._deleted()]))
            reason = gauges.trouble or filled
        at_s = now_s()
        in_rate, out_rate = self._rates.update(at_s, moved_bytes=gauges.moved_bytes, backlog_bytes=gauges.backlog_bytes)
        return MoverState(
            pid=os.getpid(),
            mover_id=self._mover_id,
            state="stopping" if gauges.stopping else "holding" if reason else "moving",
            reason=reason[:_MAX_REASON],
            dst=str(config.dst),
            heartbeat_s=at_s,
            last_progress_s=gauges.last_progress_s,
            capacity_bytes=room.capacity_bytes,
            reserve_bytes=room.reserve_bytes,
            used_bytes=room.used_bytes,
            limit_bytes=room.limit_bytes,
            low_bytes=room.low_bytes,
            backlog_parts=gauges.backlog_parts,
            backlog_bytes=gauges.backlog_bytes,
            in_bytes_per_s=round(in_rate, 1),
            out_bytes_per_s=round(out_rate, 1),
            codec=gauges.codec or config.codec,
            high=config.high,
            low=config.low,
            drain_s=_drain_s(gauges.backlog_bytes, out_rate),
            left_alone_parts=gauges.left_alone_parts,
        )

    def _groups(self) -> list[MemoryGroup]:
        if time.monotonic() - self._server_pids_at_s >= _MARKERS_S:
            self._server_pids_at_s = time.monotonic()
            self._server_pids = tuple(marker.pid for marker in self._control.live_markers())
        return [host_memory(), *memory_groups((os.getpid(), *self._server_pids), self._mounts)]

    def _deleted(self) -> str:
        """Who holds deleted files of scratch open, looked up every few seconds."""
        if time.monotonic() - self._deleted_at_s >= _DELETED_S:
            self._deleted_at_s = time.monotonic()
            said = describe(deleted_files(self._control.scratch.stat().st_dev))
            if said and not self._deleted_said:
                _log.warning("%s: %s", self._control.scratch, said)
            self._deleted_said = said
        return self._deleted_said

    def _write(self, state: MoverState) -> None:
        if self._record is not None:
            try:
                same = self._control.mover_file.stat().st_ino == self._record_inode
            except FileNotFoundError:
                same = False
            if not same:  # scratch was emptied or made anew
                self._record.close()
                self._record = None
        if self._record is None:
            self._record = FixedRecord(self._control.mover_file)
            self._record_inode = self._control.mover_file.stat().st_ino
        self._record.write(asdict(state))


def _drain_s(backlog_bytes: int, out_bytes_per_s: float) -> float:
    if not backlog_bytes:
        return 0.0
    return round(backlog_bytes / out_bytes_per_s, 1) if out_bytes_per_s >= 1 else -1.0


class _Rates:
    """Arrival and departure in bytes a second, smoothed over about five seconds."""

    def __init__(self) -> None:
        self._at_s = 0.0
        self._moved = 0
        self._arrived = 0
        self._in = 0.0
        self._out = 0.0

    def update(self, at_s: float, *, moved_bytes: int, backlog_bytes: int) -> tuple[float, float]:
        arrived = moved_bytes + backlog_bytes
        elapsed_s = at_s - self._at_s
        if self._at_s and elapsed_s > 0:
            weight = min(1.0, elapsed_s / _RATE_S)
            self._in += weight * (max(0, arrived - self._arrived) / elapsed_s - self._in)
            self._out += weight * (max(0, moved_bytes - self._moved) / elapsed_s - self._out)
        self._at_s, self._moved, self._arrived = at_s, moved_bytes, arrived
        return self._in, self._out
