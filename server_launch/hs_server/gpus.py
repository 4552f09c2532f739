"""Are the GPUs that a launch will take there and free? Asks `nvidia-smi`; where there is none, it says so and no more.

In a container the holders may be invisible, so that the memory in use decides, and holders are named where they show.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hs_formats.errors import PreflightError
from hs_server.arguments import flag_value
from hs_server.orphans import launch_port
from hs_server.plan import LaunchPlan
from hs_server.processes import command_line

__all__ = ["BUSY_BYTES", "Gpu", "check_gpus", "parse_gpus", "taken_gpus", "visible_gpus"]

BUSY_BYTES = 2 << 30
"""Memory in use above which somebody else must be at work; idle drivers and contexts take less."""

_FREEING_S = 15.0
"""How long a process that has ended may go on holding a GPU's memory; seen were two seconds."""

_POLL_S = 0.5
_TIMEOUT_S = 30.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as `nvidia-smi` tells; `holders` are the pids with memory on it that can be seen from here."""

    index: int
    uuid: str
    used_bytes: int
    total_bytes: int
    holders: tuple[int, ...] = ()


def parse_gpus(gpus: str, processes: str) -> list[Gpu]:
    """GPUs from the CSV of ``--query-gpu=index,uuid,memory.used,memory.total`` and of
    ``--query-compute-apps=gpu_uuid,pid``, both without header and units. Lines that are none are left out.
    """
    holders: dict[str, list[int]] = {}
    for uuid, *rest in _rows(processes):
        if rest and rest[0].isdigit():
            holders.setdefault(uuid, []).append(int(rest[0]))
    found: list[Gpu] = []
    for row in _rows(gpus):
        if len(row) == 4 and row[0].isdigit() and row[2].isdigit() and row[3].isdigit():
            index, uuid, used, total = row
            found.append(Gpu(int(index), uuid, int(used) * _MIB, int(total) * _MIB, tuple(holders.get(uuid, ()))))
    return found


def visible_gpus(gpus: Sequence[Gpu], chosen: str | None) -> list[Gpu] | None:
    """The GPUs in the order in which CUDA numbers them under ``CUDA_VISIBLE_DEVICES=chosen``.

    As CUDA does, it ends at the first entry that names none. None where it names parts of GPUs, of which nothing is
    known here.
    """
    if chosen is None:
        return list(gpus)
    found: list[Gpu] = []
    for entry in (item.strip() for item in chosen.split(",")):
        if entry.startswith("MIG"):
            return None
        match = [gpu for gpu in gpus if _names(entry, gpu)]
        if len(match) != 1:
            break
        found += match
    return found


def taken_gpus(visible: Sequence[Gpu], *, count: int, base: int, step: int) -> list[Gpu]:
    """The GPUs of `count` ranks: every `step`-th of the visible ones from `base` on.

    Raises:
        PreflightError: there are not that many.
    """
    wanted = range(base, base + count * step, step)
    if wanted and wanted[-1] >= len(visible):
        raise PreflightError(
            f"{count} ranks need {wanted[-1] + 1} GPUs, and {len(visible)} are visible\n"
            "  fewer with -- --tp-size N, or see to CUDA_VISIBLE_DEVICES"
        )
    return [visible[number] for number in wanted]


def check_gpus(
    plan: LaunchPlan,
    environment: Mapping[str, str],
    *,
    share: bool,
    pause: Callable[[float], None] = time.sleep,
    say: Callable[[str], object] = len,
) -> list[str]:
    """See that the GPUs of `plan` are there and free; returns lines for the terminal.

    Memory that no living process is seen to hold may be that of one which has just ended: it is waited for.

    Args:
        plan: the launch.
        environment: the surrounding one, with PATH and CUDA_VISIBLE_DEVICES.
        share: take GPUs that others use.
        pause: sleeps; what it raises ends the wait.
        say: takes a line for the user where something is waited for.

    Raises:
        PreflightError: there are too few, or others use them; names the holders.
    """
    if plan.profile.cpu or (flag_value(plan.request.pass_through, "--device") or "cuda") != "cuda":
        return []
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ["gpus      not looked at: there is no nvidia-smi; a machine without GPUs needs --profile cpu"]
    waited_s = 0.0
    while True:
        try:
            taken = _taken(program, plan, environment)
        except (OSError, subprocess.SubprocessError) as error:
            return [f"gpus      not looked at: nvidia-smi: {error}"]
        if taken is None:
            return ["gpus      not looked at: CUDA_VISIBLE_DEVICES names parts of GPUs"]
        busy = [gpu for gpu in taken if gpu.used_bytes > BUSY_BYTES]
        if not busy or share:
            break
        if waited_s >= _FREEING_S or any(command_line(pid) for gpu in busy for pid in gpu.holders):
            raise _in_use(busy)
        if not waited_s:
            say(f"gpus      {_numbers(busy)} hold memory of no process that is seen here: waiting until it is freed")
        pause(_POLL_S)
        waited_s += _POLL_S
    return [
        f"gpus      {_numbers(taken)}" + (f", of them in use by others: {len(busy)} (--share-gpus)" if busy else "")
    ]


def _taken(program: str, plan: LaunchPlan, environment: Mapping[str, str]) -> list[Gpu] | None:
    """The GPUs that the ranks of `plan` will use, as they are now; None where nothing is known of them.

    Raises:
        PreflightError: there are too few.
        OSError, subprocess.SubprocessError: `nvidia-smi` does not answer.
    """
    gpus = parse_gpus(
        _ask(program, "--query-gpu=index,uuid,memory.used,memory.total"),
        _ask(program, "--query-compute-apps=gpu_uuid,pid"),
    )
    visible = visible_gpus(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    if visible is None:
        return None
    arguments = plan.request.pass_through
    return taken_gpus(
        visible,
        count=plan.topology.local_ranks,
        base=_number(flag_value(arguments, "--base-gpu-id"), 0),
        step=max(1, _number(flag_value(arguments, "--gpu-id-step"), 1)),
    )


def _in_use(busy: Sequence[Gpu]) -> PreflightError:
    lines = [f"  GPU {gpu.index}: {gpu.used_bytes:,} of {gpu.total_bytes:,} bytes{_holders(gpu)}" for gpu in busy]
    remedy = "  stop what uses them, choose others with CUDA_VISIBLE_DEVICES, or share them with --share-gpus"
    return PreflightError("\n".join([f"GPUs are in use: {_numbers(busy)}", *lines, remedy]))


def _numbers(gpus: Sequence[Gpu]) -> str:
    return ", ".join(str(gpu.index) for gpu in gpus)


def _names(entry: str, gpu: Gpu) -> bool:
    return gpu.index == int(entry) if entry.isdigit() else entry.startswith("GPU-") and gpu.uuid.startswith(entry)


def _ask(program: str, query: str) -> str:
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return done.stdout


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]


def _holders(gpu: Gpu) -> str:
    if not gpu.holders:
        return ", by whom cannot be seen from here"
    named: list[str] = []
    for pid in gpu.holders:
        port = launch_port(pid)
        ours = f"; `hs-server stop --port {port}`" if port else ""
        named.append(f"pid {pid} ({command_line(pid)[:80] or 'of another user'}{ours})")
    return ", by " + ", ".join(named)


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdigit() else default
