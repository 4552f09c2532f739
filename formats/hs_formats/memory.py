"""The memory limits above a process: cgroup v2 and v1, every ancestor, and the host itself. Standard library only.

Files in tmpfs are memory of whoever wrote them, so these limits bound a scratch as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hs_formats.errors import FormatError

__all__ = [
    "MemoryGroup",
    "Mounts",
    "default_reserve",
    "find_mounts",
    "host_memory",
    "in_memory",
    "memory_groups",
    "process_folders",
]

DEFAULT_RESERVE_BYTES = 1 << 30
DEFAULT_RESERVE_FRACTION = 0.05

_NO_LIMIT = 1 << 60
"""cgroup v1 writes a number near 2^63 for "no limit"."""

_V2_USED = ("anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "sock", "vmalloc")
_V1_USED = ("total_rss", "total_shmem")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One limit on memory: `used_bytes` is what the kernel cannot drop (anonymous, shmem, kernel)."""

    name: str
    limit_bytes: int
    used_bytes: int

    @property
    def left_bytes(self) -> int:
        """Bytes until the limit; 0 when it is reached."""
        return max(0, self.limit_bytes - self.used_bytes)


@dataclass(frozen=True, slots=True)
class Mounts:
    """Where the hierarchies are mounted, and which cgroup each mount shows as its root."""

    v2: Path | None
    v2_root: str
    v1: Path | None
    v1_root: str


def default_reserve(total_bytes: int, *, shared_memory_mount: bool) -> int:
    """Bytes left to others: on /dev/shm's mount NCCL keeps its buffers, so min(1 GiB, 5 %) there, elsewhere nothing."""
    if not shared_memory_mount:
        return 0
    return min(DEFAULT_RESERVE_BYTES, int(total_bytes * DEFAULT_RESERVE_FRACTION))


def find_mounts(mountinfo: str) -> Mounts:
    """The memory hierarchies in the text of ``/proc/self/mountinfo``."""
    v2: tuple[Path | None, str] = (None, "/")
    v1: tuple[Path | None, str] = (None, "/")
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            v2 = (Path(fields[4]), fields[3])
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            v1 = (Path(fields[4]), fields[3])
    return Mounts(*v2, *v1)


def in_memory(folder: Path, mountinfo: str) -> bool:
    """The files of `folder` are memory (tmpfs, ramfs), so that the limits on memory count.

    Raises:
        OSError: the folder is gone.
    """
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [number]:
            return after.split()[:1] in (["tmpfs"], ["ramfs"])
    return False


def process_folders(membership: str, mounts: Mounts) -> list[Path]:
    """Folders of all memory cgroups that hold a process, innermost first.

    `membership` is the text of ``/proc/<pid>/cgroup``. A path outside of what is mounted here (another container's)
    gives only the mount's root.
    """
    found: list[Path] = []
    for line in membership.splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            mount, root = mounts.v2, mounts.v2_root
        elif "memory" in controllers.split(","):
            mount, root = mounts.v1, mounts.v1_root
        else:
            continue
        if mount is None:
            continue
        inner = PurePosixPath(path)
        parts: tuple[str, ...] = ()
        if inner.is_relative_to(root) and ".." not in inner.parts:
            parts = inner.relative_to(root).parts
        found.extend(mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1))
    return found


def _numbers(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if value.isdigit():
            found[name] = int(value)
    return found


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < _NO_LIMIT else None


def _group(folder: Path) -> MemoryGroup | None:
    limits = [
        limit
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes")
        if (limit := _limit(folder / name)) is not None
    ]
    if not limits:
        return None
    try:
        stat = _numbers((folder / "memory.stat").read_text("ascii"))
    except OSError:
        return None
    if "total_rss" in stat:
        # v1 counts all kernel memory in one figure; the part that could be reclaimed is on the safe side.
        used = sum(stat.get(name, 0) for name in _V1_USED) + (_limit(folder / "memory.kmem.usage_in_bytes") or 0)
    else:
        used = sum(stat.get(name, 0) for name in _V2_USED)
    return MemoryGroup(f"cgroup {folder}", min(limits), used)


def memory_groups(pids: Iterable[int], mounts: Mounts, *, proc: Path = Path("/proc")) -> list[MemoryGroup]:
    """The limited memory cgroups above the processes `pids`, each once. Processes that are gone are skipped."""
    folders: dict[Path, None] = {}
    for pid in pids:
        try:
            membership = (proc / str(pid) / "cgroup").read_text("utf-8", "replace")
        except OSError:
            continue
        folders.update(dict.fromkeys(process_folders(membership, mounts)))
    return [group for folder in folders if (group := _group(folder)) is not None]


def host_memory(*, proc: Path = Path("/proc")) -> MemoryGroup:
    """The machine's own memory as a limit: what ``MemAvailable`` calls available can still be filled.

    Raises:
        FormatError: ``/proc/meminfo`` lacks the figures.
        OSError: it cannot be read.
    """
    values: dict[str, int] = {}
    for line in (proc / "meminfo").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    try:
        total, available = values["MemTotal"], values["MemAvailable"]
    except KeyError as error:
        raise FormatError(f"/proc/meminfo says nothing of {error}") from error
    return MemoryGroup("host memory", total, total - available)
