"""Is there room for what a launch will need: in scratch, in /dev/shm for NCCL, in the host's memory for the rings?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_formats.control import used_bytes
from hs_formats.errors import FormatError, PreflightError
from hs_formats.failure_ring import FAILURE_SLOTS
from hs_formats.memory import default_reserve, find_mounts, host_memory, in_memory, memory_groups
from hs_server import env
from hs_server.plan import LaunchPlan

__all__ = ["SHARED_MEMORY", "SHM_BYTES", "RoomFacts", "check_room", "judge_room", "read_room"]

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the mount is looked at, nothing is made there

SHM_BYTES = 1 << 30
"""What /dev/shm should hold where several GPUs talk through it: NVIDIA's own advice for containers (--shm-size=1g)."""

_CONTROL_BYTES = 256 * (FAILURE_SLOTS + 1) + (64 << 10)
"""Control files of one rank: the failure ring above all."""

_CANARY_TOKENS = 512
_FEW_TOKENS = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomFacts:
    """What was read, in bytes.

    Attributes:
        free: of scratch's file system.
        reserve: of it, left to others.
        memory_left: that the tightest limit above this process leaves; None where it cannot be told.
        in_memory: scratch's files count as memory.
        shm_total: size of /dev/shm; 0 where there is none.
    """

    free: int
    reserve: int
    memory_left: int | None
    in_memory: bool
    shm_total: int


def read_room(scratch: Path, *, shared_memory: Path = SHARED_MEMORY) -> RoomFacts:
    """Read the facts about the folder `scratch`.

    Raises:
        OSError: it is gone.
    """
    found = os.statvfs(scratch)
    total = used_bytes(found) + found.f_bavail * found.f_frsize
    try:
        shm = os.statvfs(shared_memory)
        on_shm = shared_memory.stat().st_dev == scratch.stat().st_dev
        shm_total = shm.f_blocks * shm.f_frsize
    except OSError:
        on_shm, shm_total = False, 0
    mountinfo = Path("/proc/self/mountinfo").read_text("utf-8", "replace")
    try:
        groups = [*memory_groups([os.getpid()], find_mounts(mountinfo)), host_memory()]
        left = min(group.left_bytes for group in groups)
    except (FormatError, OSError):
        left = None
    return RoomFacts(
        free=found.f_bavail * found.f_frsize,
        reserve=default_reserve(total, shared_memory_mount=on_shm),
        memory_left=left,
        in_memory=in_memory(scratch, mountinfo),
        shm_total=shm_total,
    )


def check_room(plan: LaunchPlan, environment: Mapping[str, str]) -> list[str]:
    """Check the room for `plan`, whose scratch exists; returns lines for the terminal.

    Raises:
        PreflightError: there is too little.
        OSError: scratch is gone.
    """
    capture = plan.request.capture
    facts = read_room(capture.dump_dir if capture is not None else SHARED_MEMORY)
    text = environment.get(env.RING_BYTES, "")
    return judge_room(
        facts,
        ranks=plan.topology.local_ranks,
        gpu=not plan.profile.cpu,
        capturing=capture is not None,
        ring_bytes=int(text) if text.isdigit() else env.DEFAULT_RING_BYTES,
        token_bytes=_token_bytes(plan),
    )


def judge_room(
    facts: RoomFacts, *, ranks: int, gpu: bool, capturing: bool, ring_bytes: int, token_bytes: int
) -> list[str]:
    """Decide about the facts.

    Args:
        facts: what was read.
        ranks: scheduler processes of this node.
        gpu: rings are page-locked, and ranks talk through NCCL.
        capturing: there is a capture, with rings and a scratch.
        ring_bytes: of each rank.
        token_bytes: that one captured token takes in scratch, all copies; 0 where it is not known yet.

    Raises:
        PreflightError: there is too little.
    """
    if gpu and ranks > 1 and 0 < facts.shm_total < SHM_BYTES:
        raise PreflightError(
            f"{SHARED_MEMORY} holds {facts.shm_total:,} bytes, and NCCL between {ranks} ranks may need {SHM_BYTES:,}\n"
            "  start the container with --shm-size=1g or more, or --ipc=host; or remount it larger"
        )
    if not capturing:
        return []
    rings = ring_bytes * ranks if gpu else 0  # on a CPU its pages are touched as they are needed
    left = facts.memory_left
    if left is not None and rings > left:
        raise PreflightError(
            f"the host has {left:,} bytes of memory left, and the rings of {ranks} ranks take {rings:,}\n"
            f"  set {env.RING_BYTES} lower (now {ring_bytes:,} a rank), or give the container more"
        )
    room = facts.free - facts.reserve
    bound = ""
    if facts.in_memory and left is not None and left - rings < room:
        room, bound = left - rings, ", bound by the memory left"
    need = ranks * _CONTROL_BYTES + _CANARY_TOKENS * token_bytes
    if room < need:
        raise PreflightError(
            f"scratch has room for {max(0, room):,} bytes{bound}, and the launch alone needs {need:,}\n"
            f"  make room there, give it more, or choose another with --dump-dir ({facts.reserve:,} are left to others)"
        )
    if not token_bytes:
        return [f"room      {room:,} bytes{bound}"]
    tokens = (room - need) // token_bytes
    lines = [f"room      {room:,} bytes{bound}: about {tokens:,} tokens"]
    if tokens < _FEW_TOKENS:
        lines.append("          that is little: longer prompts are refused as too large; give scratch more")
    return lines


def _token_bytes(plan: LaunchPlan) -> int:
    if plan.model is None or plan.boundaries is None:
        return 0
    capture = plan.request.capture
    copies = plan.topology.tp if capture is not None and capture.writers == "all" else 1
    return copies * (len(plan.boundaries) + 1) * plan.model.hidden_size * (4 if plan.profile.cpu else 2)
