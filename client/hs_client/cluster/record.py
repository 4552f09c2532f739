"""What was started on a node, so that whoever comes next there knows whose it is: to be stopped, or left alone."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from hs_formats.durable import make_folders, replace_file
from hs_formats.state import state_folder

__all__ = ["Started", "launching", "moving", "node_folder", "read_started", "running", "write_started"]

_NAME = "started.json"


class Started(msgspec.Struct, kw_only=True):
    """What actors have started for one scratch.

    Attributes:
        launcher: the process that launches a server, while it does; 0: none. What it has launched is on hs-server's own
            records, which lie in the same folder.
        mover: the mover's process; 0: none.
    """

    launcher: int = 0
    mover: int = 0


def node_folder(environment: Mapping[str, str], scratch: Path) -> Path:
    """Where logs and records of this machine's `scratch` lie: apart for each machine, since homes may be shared."""
    return state_folder(environment) / "nodes" / socket.gethostname() / str(scratch).strip("/").replace("/", "-")


def read_started(folder: Path) -> Started:
    """What is on record; nothing where there is no record, or none that can be read."""
    try:
        return msgspec.json.decode((folder / _NAME).read_bytes(), type=Started)
    except (OSError, msgspec.MsgspecError):
        return Started()


def write_started(folder: Path, started: Started) -> None:
    """Put it on record.

    Raises:
        OSError: it cannot be written.
    """
    make_folders(folder, mode=0o700)
    replace_file(folder / _NAME, msgspec.json.encode(started))


def launching(pid: int) -> bool:
    """There is such a process, and it is an `hs-server launch`."""
    words = _words(pid)
    return b"launch" in words and any(word.endswith(b"hs-server") for word in words)


def moving(pid: int) -> bool:
    """There is such a process, and it is an `hs-mover`, with or without a heartbeat."""
    return any(word.endswith(b"hs-mover") for word in _words(pid))


def _words(pid: int) -> list[bytes]:
    """The command line of a process; none where it does not run."""
    if not running(pid):
        return []
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def running(pid: int) -> bool:
    """There is such a process, and it is no zombie that nobody has waited for."""
    if pid <= 0:
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
