"""A real memory cgroup: page cache in it closes nothing, shared memory in it does, before the kernel kills anyone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memory_group import memory_group
from movers import MOVER, check_moved, scratch_parts, state_of, wait_for
from parts import drop_part, make_part, register
from small_tmpfs import small_tmpfs

RUN = "00c0ffee"
LIMIT = 512 << 20


def inside(group: Path, *command: str) -> subprocess.Popen[bytes]:
    """`command`, in `group` from its first instruction on."""
    script = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
    return subprocess.Popen(["sh", "-c", script, str(group), *command], stderr=subprocess.DEVNULL)


def write_inside(group: Path, path: Path, size_bytes: int) -> None:
    """A file written, and then read, by a process of `group`: its pages count there."""
    code = (
        "import sys\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        "    for _ in range(int(sys.argv[2]) >> 20): file.write(b'\\1' * (1 << 20))\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    while file.read(1 << 20): pass\n"
    )
    assert inside(group, sys.executable, "-c", code, str(path), str(size_bytes)).wait(120) == 0


def capacity(src: Path) -> int:
    state = state_of(src)
    assert state is not None
    return state.capacity_bytes


@pytest.mark.tmpfs
@pytest.mark.slow
def test_page_cache_never_closes_admission_and_shared_memory_does(tmp_path: Path) -> None:
    with (
        memory_group(LIMIT) as group,
        small_tmpfs(tmp_path / "scratch", options="size=2g") as src,
        small_tmpfs(tmp_path / "other", options="size=2g") as other,
    ):
        register(src, RUN, "set")
        dst = tmp_path / "data"
        mover = inside(group, *MOVER, "--src", str(src), "--dst", str(dst))
        try:
            wait_for(lambda: (state := state_of(src)) is not None and state.state == "moving")
            state = state_of(src)
            assert state is not None
            assert state.pid == mover.pid
            free = capacity(src)
            assert LIMIT // 2 < free < LIMIT  # the mover's own memory counts

            seen: list[tuple[str, int]] = []
            parts: dict[str, bytes] = {}
            cache = tmp_path / "cache"
            for row in range(12):  # three times the limit through the page cache, while parts are moved
                path = drop_part(src, f"hs-{RUN}-{row:08d}-00", 0, 64, 64, seed=row, hidden=256)
                parts[path.name] = make_part(path.name[:23], 0, 64, 64, seed=row, hidden=256)
                write_inside(group, cache, LIMIT // 4)
                state = state_of(src)
                assert state is not None
                seen.append((state.state, state.capacity_bytes))
            cached = int(
                next(
                    line.split()[1]
                    for line in (group / "memory.stat").read_text().splitlines()
                    if line.split()[0] in ("cache", "file")
                )
            )
            assert cached > LIMIT // 8  # the page cache was really there
            assert {word for word, _ in seen} == {"moving"}
            assert min(size for _, size in seen) > free - (48 << 20)
            wait_for(lambda: not scratch_parts(src))

            ballast = other / "ballast"
            write_inside(group, ballast, 200 << 20)  # shared memory elsewhere leaves less for scratch
            wait_for(lambda: capacity(src) < free - (190 << 20))
            state = state_of(src)
            assert state is not None
            assert state.state == "moving"
            write_inside(group, src / "foreign", int(0.87 * capacity(src)))
            wait_for(lambda: (state := state_of(src)) is not None and state.state == "holding")
            state = state_of(src)
            assert state is not None
            assert f"bound: cgroup {group}" in state.reason
            ballast.unlink()
            wait_for(lambda: (state := state_of(src)) is not None and state.state == "moving")
            assert mover.poll() is None
        finally:
            mover.terminate()
            assert mover.wait(30) == 0
            (src / "foreign").unlink(missing_ok=True)
        check_moved(dst / "set", parts)
