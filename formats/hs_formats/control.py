"""The control folder ``.hs/`` in scratch: who is alive, how full scratch may get, what was promised.

The three processes never talk to each other; they leave files here. A file that must be writable while scratch is full
is a `FixedRecord` or a `FailureRing`; the others are replaced by rename. `hs_formats.control_state` has what they hold.

Standard library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from hs_formats.control_state import (
    HEARTBEAT_S,
    STALE_S,
    CaptureStatistics,
    ClientState,
    Marker,
    MoverState,
    RunState,
    now_s,
)
from hs_formats.durable import replace_file
from hs_formats.errors import FormatError
from hs_formats.fixed_record import FixedRecord, read_record
from hs_formats.names import is_run_id
from hs_formats.part import parse_struct

__all__ = [
    "CLIENT_GRACE_S",
    "CONTROL_FOLDER",
    "CREDIT_PATIENCE_S",
    "DEAD_SERVER_KEPT_S",
    "DEFAULT_SCRATCH",
    "HEARTBEAT_S",
    "STALE_S",
    "CaptureStatistics",
    "ClientState",
    "ControlFolder",
    "HeldMarker",
    "Marker",
    "MoverState",
    "RunState",
    "against_others",
    "default_scratch",
    "now_s",
    "same_folder",
    "used_bytes",
]

CONTROL_FOLDER = ".hs"

DEFAULT_SCRATCH = Path("/dev/shm/sglang_hs")  # noqa: S108 - made 0700, and refused where it is another user's

CREDIT_PATIENCE_S = 3.0
"""Holding ``credit.lock`` takes microseconds; who waits for it longer than this should look around."""

CLIENT_GRACE_S = 30.0
"""How long the promise of a client outlives its heartbeat: requests it has sent may still fill scratch."""


def default_scratch(environment: Mapping[str, str] = os.environ) -> Path:
    """Scratch where no option names it: ``$SGLANG_HS_DUMP_DIR``, else `DEFAULT_SCRATCH`."""
    return Path(environment.get("SGLANG_HS_DUMP_DIR") or DEFAULT_SCRATCH)


def against_others(scratch: Path, mode: int) -> str | None:
    """How to keep other users out of a scratch folder of this `mode`; None where none of them may enter."""
    if not stat.S_IMODE(mode) & 0o077:
        return None
    if mode & stat.S_ISVTX:  # /tmp, or /dev/shm itself: closing those would break the machine for everybody else
        return f"that one is everybody's; give a folder of its own, such as {scratch / 'sglang_hs'}"
    return f"chmod 700 {scratch}"


DEAD_SERVER_KEPT_S = 120.0
"""How long the records of a dead scheduler process are kept for clients to read."""


def used_bytes(found: os.statvfs_result) -> int:
    """Fill of a file system, other people's files included: the mover's limit bounds it, and clients compare it."""
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def same_folder(one: str, other: str) -> bool:
    """Two paths of a destination mean the same folder, links followed."""
    return one == other or Path(one).resolve() == Path(other).resolve()


class HeldMarker:
    """A marker file that this process keeps locked."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        # A forked child would share the lock and make us look alive after our death.
        os.register_at_fork(after_in_child=self.release)

    def release(self) -> None:
        """Unlock; the file stays and counts as dead."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ControlFolder:
    """Paths and accessors of ``<scratch>/.hs``. Making one touches nothing."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.root = scratch / CONTROL_FOLDER
        self.clients = self.root / "clients"
        self.runs = self.root / "runs"
        self.mover_file = self.root / "mover.json"
        self.mover_lock = self.root / "mover.lock"
        self.credit_lock = self.root / "credit.lock"

    def create(self) -> None:
        """Make scratch and the control folder, 0700, ours.

        Raises:
            FormatError: something there is a link, no folder, or another user's.
            OSError: as `os.mkdir`.
        """
        self.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.root, self.clients, self.runs):
            folder.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.scratch, self.root, self.clients, self.runs):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode):
                raise FormatError(f"{folder} is a link or not a folder")
            if found.st_uid != os.geteuid():
                raise FormatError(f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}")
            if folder != self.scratch and stat.S_IMODE(found.st_mode) != 0o700:
                folder.chmod(0o700)

    # -- servers

    def marker_path(self, pid: int, rank: int) -> Path:
        """File of one scheduler process."""
        return self.root / f"server-{pid}-r{rank}.json"

    def hold_marker(self, marker: Marker) -> HeldMarker:
        """Publish `marker`, locked until the process ends or `release` is called.

        Raises:
            OSError: the control folder is missing or full.
        """
        path = self.marker_path(marker.pid, marker.rank)
        temporary = path.with_name(f".{path.name}.tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = json.dumps(asdict(marker), indent=1).encode()
            if os.write(fd, data) != len(data):
                raise OSError(f"short write to {temporary}")
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            os.close(fd)
            raise
        return HeldMarker(path, fd)

    def markers(self) -> list[tuple[Marker, bool]]:
        """All readable markers with whether their process lives, ordered by file name."""
        found: list[tuple[Marker, bool]] = []
        for path in sorted(self.root.glob("server-*.json")):
            try:
                with path.open("rb") as file:
                    alive = not _try_lock(file.fileno())
                    data = json.loads(file.read())
                    if not isinstance(data, dict):
                        continue
                    marker = parse_struct(Marker, data)
            except (OSError, ValueError, RecursionError):
                continue  # being replaced, or not ours
            found.append((marker, alive))
        return found

    def live_markers(self, *, port: int | None = None) -> list[Marker]:
        """Markers of living scheduler processes, of the server on `port` if given."""
        return [marker for marker, alive in self.markers() if alive and port in (None, marker.port)]

    def remove_dead_servers(self, *, keep_s: float = DEAD_SERVER_KEPT_S) -> int:
        """Remove markers, failure rings and counters of scheduler processes that ended; returns how many processes.

        Those of the last `keep_s` seconds are kept: clients may not have read yet what could not be written.
        """
        removed = 0
        for marker, alive in self.markers():
            ring = self.failure_path(marker.pid, marker.rank)
            try:
                age_s = time.time() - ring.stat().st_mtime
            except FileNotFoundError:
                age_s = keep_s
            if alive or age_s < keep_s:
                continue
            # The marker goes last: without it nobody would know that the others belong to a dead process.
            for path in (
                ring,
                self.statistics_path(marker.pid, marker.rank),
                self.marker_path(marker.pid, marker.rank),
            ):
                path.unlink(missing_ok=True)
            removed += 1
        return removed

    def statistics_path(self, pid: int, rank: int) -> Path:
        """The counters of one scheduler process."""
        return self.root / f"capture-{pid}-r{rank}.json"

    def read_statistics(self, pid: int, rank: int) -> CaptureStatistics | None:
        """The counters of one scheduler process, at most about a second old; None where there are none yet.

        Raises:
            FormatError: the record is of another version.
            OSError: the file is there and cannot be read.
        """
        record = read_record(self.statistics_path(pid, rank))
        return None if record is None else parse_struct(CaptureStatistics, record)

    # -- mover

    def read_mover(self) -> MoverState | None:
        """The mover's last state, or None when no mover ever ran here.

        Raises:
            FormatError: the record is of another version.
        """
        record = read_record(self.mover_file)
        return None if record is None else parse_struct(MoverState, record)

    # -- runs and clients

    def register_run(self, state: RunState) -> None:
        """Say which dataset the parts of a run belong to, before its first request."""
        replace_file(self._run_file(self.runs, state.run), json.dumps(asdict(state)).encode())

    def read_run(self, run: str) -> RunState | None:
        """Who claims the parts of `run`; None when nobody does, or nobody legibly.

        Raises:
            FormatError: `run` is no run id.
            OSError: the file is there and cannot be read.
        """
        path = self._run_file(self.runs, run)
        try:
            data = json.loads(path.read_bytes())
            return parse_struct(RunState, data) if isinstance(data, dict) else None
        except (FileNotFoundError, ValueError, RecursionError):
            return None

    def client_record(self, run: str) -> FixedRecord:
        """The record in which a client publishes its `ClientState`."""
        return FixedRecord(self._run_file(self.clients, run))

    def read_clients(self) -> list[ClientState]:
        """The states of all clients that have not removed theirs."""
        found: list[ClientState] = []
        for path in sorted(self.clients.glob("*.json")):
            try:
                record = read_record(path)
                if record is not None:
                    found.append(parse_struct(ClientState, record))
            except (OSError, FormatError):
                continue  # removed meanwhile
        return found

    def touch_run(self, run: str) -> None:
        """Say that `run` goes on.

        Raises:
            OSError: its registration is gone.
        """
        os.utime(self._run_file(self.runs, run))

    def remove_run(self, run: str) -> None:
        """Forget a run of which nothing will come any more."""
        self._run_file(self.runs, run).unlink(missing_ok=True)

    def remove_client(self, run: str) -> None:
        """Withdraw the promise of a run that is over."""
        self._run_file(self.clients, run).unlink(missing_ok=True)

    @staticmethod
    def _run_file(folder: Path, run: str) -> Path:
        if not is_run_id(run):
            raise FormatError(f"run id {run!r} is not eight lower-case hex digits")
        return folder / f"{run}.json"

    @contextlib.contextmanager
    def credit(self) -> Iterator[None]:
        """Exclusive right to check the fill of scratch and to write a promise (flock on ``credit.lock``).

        Raises:
            TimeoutError: somebody has held it for `CREDIT_PATIENCE_S`: a stopped process, most likely.
        """
        fd = os.open(self.credit_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock_soon(fd, CREDIT_PATIENCE_S)
            yield
        finally:
            os.close(fd)

    # -- failures

    def failure_path(self, pid: int, rank: int) -> Path:
        """The failure ring of one scheduler process."""
        return self.root / f"failed-{pid}-r{rank}"

    def failure_paths(self) -> list[Path]:
        """The failure rings of all scheduler processes, dead ones included."""
        return sorted(self.root.glob("failed-*-r*"))


def _lock_soon(fd: int, patience_s: float) -> None:
    end_s = time.monotonic() + patience_s
    pause_s = 0.0005
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end_s:
                raise TimeoutError(f"locked for {patience_s:.0f} s") from None
            time.sleep(pause_s)
            pause_s = min(0.01, 2 * pause_s)
        else:
            return


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True
