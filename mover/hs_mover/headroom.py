"""How much of scratch may be used: pure functions over what the file system and the memory cgroups report.

Files in tmpfs are memory of the cgroup whose process wrote them. A tmpfs with free space is worth nothing when that
cgroup reaches its limit first: the kernel then kills the server. So the room left is the least of the file system's and
of every cgroup's above the server and above the mover. Page cache is never counted as used, the kernel drops it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hs_formats.memory import MemoryGroup

__all__ = ["FillHold", "Headroom", "Space", "headroom"]


@dataclass(frozen=True, slots=True)
class Space:
    """What ``statvfs`` says of scratch: the fill, whoever caused it, and what is left to ordinary users.

    Inode counts are 0 where the file system sets no limit.
    """

    used_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int


@dataclass(frozen=True, slots=True)
class Headroom:
    """Sizes for ``mover.json``, bytes. `bound` names what limits the capacity."""

    capacity_bytes: int
    reserve_bytes: int
    used_bytes: int
    limit_bytes: int
    low_bytes: int
    bound: str


def headroom(space: Space, groups: Iterable[MemoryGroup], *, reserve_bytes: int, high: float, low: float) -> Headroom:
    """Capacity and marks of scratch.

    The capacity is the fill that can be reached, less the reserve: used + the least of what is left.
    """
    reachable, bound = space.used_bytes + space.free_bytes, "file system"
    for group in groups:
        if space.used_bytes + group.left_bytes < reachable:
            reachable, bound = space.used_bytes + group.left_bytes, group.name
    capacity = max(0, reachable - reserve_bytes)
    return Headroom(
        capacity_bytes=capacity,
        reserve_bytes=reserve_bytes,
        used_bytes=space.used_bytes,
        limit_bytes=int(capacity * high),
        low_bytes=int(capacity * low),
        bound=bound,
    )


@dataclass(slots=True)
class FillHold:
    """Hysteresis: holding begins above the high mark and ends below the low one, for bytes and for inodes alike."""

    high: float
    low: float
    bytes_held: bool = False
    inodes_held: bool = False

    def update(self, room: Headroom, space: Space) -> str:
        """Why clients must wait, or ""."""
        used_inodes = space.total_inodes - space.free_inodes
        self.inodes_held = space.total_inodes > 0 and used_inodes > space.total_inodes * (
            self.low if self.inodes_held else self.high
        )
        self.bytes_held = room.used_bytes > (room.low_bytes if self.bytes_held else room.limit_bytes)
        if self.inodes_held:
            return f"scratch is short of inodes: {space.free_inodes} of {space.total_inodes} free"
        if self.bytes_held:
            return (
                f"scratch is filled with {room.used_bytes} of {room.capacity_bytes} bytes (bound: {room.bound}), "
                f"moving down to {room.low_bytes}"
            )
        return ""
