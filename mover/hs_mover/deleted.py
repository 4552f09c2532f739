"""Files that were deleted and still take space, because a process has them open or mapped.

They are in no listing, so a scratch full of them looks empty; the kernel frees them when the last process lets go.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Holder", "deleted_files", "describe"]

_BLOCK_BYTES = 512
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and how many bytes of deleted files it keeps."""

    pid: int
    command: str
    size_bytes: int


def deleted_files(device: int, *, proc: Path = Path("/proc")) -> list[Holder]:
    """Who keeps deleted files of the file system `device` (``st_dev``), largest first; each file counts once.

    Processes that this user may not look at are passed over. The size of a file that is only mapped is what is mapped
    of it.
    """
    seen: set[int] = set()
    found: list[Holder] = []
    for pid in sorted(int(name) for name in os.listdir(proc) if name.isdigit()):
        sizes: dict[int, int] = {}
        with suppress(OSError):
            sizes |= _opened(proc / str(pid) / "fd", device)
        with suppress(OSError):
            for inode, size_bytes in _mapped(proc / str(pid) / "maps", device):
                if inode not in sizes and inode not in seen:
                    sizes[inode] = size_bytes
        mine = sum(size_bytes for inode, size_bytes in sizes.items() if inode not in seen)
        seen |= sizes.keys()
        if mine:
            found.append(Holder(pid, _command(proc / str(pid) / "comm"), mine))
    return sorted(found, key=lambda holder: -holder.size_bytes)


def describe(holders: list[Holder]) -> str:
    """For people: how much it is and who has most; "" for none."""
    if not holders:
        return ""
    total = sum(holder.size_bytes for holder in holders)
    names = ", ".join(f"{holder.command} (pid {holder.pid})" for holder in holders[:_NAMED])
    more = f" and {len(holders) - _NAMED} more" if len(holders) > _NAMED else ""
    return f"{total} bytes are deleted files that {names}{more} still have open"


def _opened(folder: Path, device: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir(folder):
        with suppress(OSError):
            status = os.stat(folder / name)
            if status.st_dev == device and status.st_nlink == 0:
                found[status.st_ino] = status.st_blocks * _BLOCK_BYTES
    return found


def _mapped(maps: Path, device: int) -> Iterator[tuple[int, int]]:
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    sizes: dict[int, int] = {}
    for line in maps.read_text("utf-8", "replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[3] == number and fields[5].endswith(" (deleted)"):
            start, _, stop = fields[0].partition("-")
            inode = int(fields[4])
            sizes[inode] = sizes.get(inode, 0) + int(stop, 16) - int(start, 16)
    yield from sizes.items()


def _command(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip() or "?"
    except OSError:
        return "?"
