"""What /proc tells about processes: identity that survives pid reuse, environment, children, listening sockets."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hs_formats.printable import printable
from hs_server.arguments import without_secrets

__all__ = [
    "ProcessInfo",
    "boot_id",
    "command_line",
    "has_variable",
    "list_processes",
    "port_owner",
    "process_info",
    "variables",
]

_PROC = Path("/proc")
_LISTEN = "0A"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One line of /proc/<pid>/stat. A pid together with `start_ticks` names one process of this boot for good."""

    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int

    @property
    def alive(self) -> bool:
        """A zombie is only an exit status that nobody has fetched."""
        return self.state not in {"Z", "X"}


def boot_id() -> str:
    """Names the current boot: pids and start times mean nothing after another."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_info(pid: int) -> ProcessInfo | None:
    """The process `pid`, or None where there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too.
    fields = text[text.rindex(")") + 2 :].split()
    return ProcessInfo(
        pid=pid, state=fields[0], parent=int(fields[1]), session=int(fields[3]), start_ticks=int(fields[19])
    )


def list_processes() -> list[ProcessInfo]:
    """All processes that are not zombies."""
    infos = (process_info(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return [info for info in infos if info is not None and info.alive]


def command_line(pid: int) -> str:
    """The command line of `pid` on one line, without keys; empty where it cannot be read."""
    try:
        arguments = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return printable(" ".join(without_secrets(arguments)).strip())


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether `pid` was started with `name=value` in its environment."""
    return f"{name}={value}".encode() in _environ(pid)


def variables(pid: int, names: Iterable[str]) -> dict[str, str]:
    """Those of the variables `names` that `pid` was started with; empty where it cannot be read."""
    wanted = set(names)
    pairs = (entry.decode(errors="surrogateescape").partition("=") for entry in _environ(pid))
    return {name: value for name, _, value in pairs if name in wanted}


def _environ(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def port_owner(port: int) -> int | None:
    """The pid that listens on TCP `port`, where this user may see it."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "net" / table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    if not inodes:
        return None
    for name in os.listdir(_PROC):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (_PROC / name / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        return int(name)
    return None
