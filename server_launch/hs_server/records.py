"""What is known of the servers started here: one JSON file a port, under the user's state folder.

A record is a hint that is checked against /proc each time: pid, start time and boot must match, otherwise the server is
gone and the record is removed by whoever notices.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hs_formats.durable import replace_file
from hs_formats.errors import PreflightError
from hs_server.process_group import ServerGroup
from hs_server.processes import boot_id, process_info

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LaunchRecord", "RecordStore"]

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """One launch. `dump_dir` and `nonce` are empty where nothing is captured."""

    launch_id: str
    pid: int
    start_ticks: int
    boot: str
    launcher_pid: int
    launcher_start_ticks: int
    host: str
    port: int
    url: str
    model_path: str
    profile: str
    dump_dir: str
    nonce: str
    local_ranks: int
    log: str
    ready: bool = False
    version: int = _VERSION

    @property
    def group(self) -> ServerGroup:
        """The processes of the launch."""
        return ServerGroup(pid=self.pid, start_ticks=self.start_ticks, launch_id=self.launch_id)

    @property
    def capturing(self) -> bool:
        """Whether the launch asked for a capture."""
        return bool(self.nonce)

    def launcher_alive(self) -> bool:
        """Whether the `hs-server launch` of this record still runs (in the foreground, or waiting for readiness)."""
        info = process_info(self.launcher_pid)
        return info is not None and info.alive and info.start_ticks == self.launcher_start_ticks


class RecordStore:
    """The records under one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._folder = state / "servers"

    def create(self) -> None:
        """Make the folder.

        Raises:
            PreflightError: it cannot be made.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(
                f"state folder {self._folder} cannot be made: {error.strerror}\n  name another in HS_STATE_DIR"
            ) from None

    def log_path(self, port: int) -> Path:
        """The default log of the server on `port`."""
        return self._folder / f"{port}.log"

    @contextlib.contextmanager
    def lock(self, port: int) -> Iterator[None]:
        """Exclusive right to launch on `port`, until the server is ready.

        Raises:
            PreflightError: another launch on this port is under way.
        """
        descriptor = os.open(self._folder / f"{port}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreflightError(
                    f"another launch on port {port} is under way\n  wait for it, or choose another --port"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def write(self, record: LaunchRecord) -> None:
        """Replace the record of its port."""
        self.create()
        replace_file(self._path(record.port), json.dumps(asdict(record), indent=1).encode() + b"\n")

    def mark_ready(self, record: LaunchRecord) -> LaunchRecord:
        """Note that the server of `record` is ready."""
        ready = replace(record, ready=True)
        self.write(ready)
        return ready

    def remove(self, record: LaunchRecord) -> None:
        """Forget `record`, unless another launch has replaced it."""
        found = self._read(self._path(record.port))
        if found is None or found.launch_id == record.launch_id:
            self._path(record.port).unlink(missing_ok=True)

    def find(self, port: int) -> LaunchRecord | None:
        """The record of the launch on `port` that still has processes; a stale one is removed."""
        record = self._read(self._path(port))
        if record is None:
            return None
        if record.boot != boot_id() or not record.group.members():
            self._path(port).unlink(missing_ok=True)
            return None
        return record

    def all(self) -> list[LaunchRecord]:
        """The records of all launches that still have processes, by port."""
        ports = sorted(int(path.stem) for path in self._folder.glob("*.json") if path.stem.isdigit())
        return [record for port in ports if (record := self.find(port)) is not None]

    def _path(self, port: int) -> Path:
        return self._folder / f"{port}.json"

    @staticmethod
    def _read(path: Path) -> LaunchRecord | None:
        """The record in `path`; None where there is none, or none that this version can read."""
        try:
            value: Any = json.loads(path.read_bytes())
            if value["version"] != _VERSION:
                return None
            known = {field.name for field in fields(LaunchRecord)}
            return LaunchRecord(**{name: item for name, item in value.items() if name in known})
        except (OSError, ValueError, KeyError, TypeError):
            return None
