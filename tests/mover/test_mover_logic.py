"""The mover's pure parts: headroom, marks, sizes, the backlog's order, the rate limit, memory limits."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hs_formats.errors import UsageError
from hs_formats.location import ObjectUrl
from hs_formats.memory import (
    MemoryGroup,
    Mounts,
    default_reserve,
    find_mounts,
    host_memory,
    in_memory,
    memory_groups,
    process_folders,
)
from hs_formats.names import PartName
from hs_mover.backlog import Backlog, Waiting
from hs_mover.checks import PartDigest, read_pieces
from hs_mover.config import MoverConfig, mover_id, parse_size
from hs_mover.headroom import FillHold, Space, headroom
from hs_mover.pace import Pace
from parts import make_part, part_name

SIZES = st.integers(0, 1 << 50)


@given(
    st.tuples(SIZES, SIZES), st.lists(st.tuples(SIZES, SIZES), max_size=4), SIZES,
    st.floats(0.01, 1.0), st.floats(0.01, 1.0),
)  # fmt: skip
def test_headroom_is_bounded_by_the_tightest_limit(
    space: tuple[int, int], groups: list[tuple[int, int]], reserve: int, high: float, low: float
) -> None:
    used, free = space
    found = headroom(
        Space(used, free, 0, 0),
        [MemoryGroup("g", limit, taken) for limit, taken in groups],
        reserve_bytes=reserve,
        high=max(high, low),
        low=min(high, low),
    )
    assert 0 <= found.low_bytes <= found.limit_bytes <= found.capacity_bytes
    reachable = min([used + free, *(used + max(0, limit - taken) for limit, taken in groups)])
    assert found.capacity_bytes == max(0, reachable - reserve)
    assert found.used_bytes == used


def test_reserve_is_kept_for_nccl_on_shared_memory_only() -> None:
    assert default_reserve(64 << 20, shared_memory_mount=False) == 0
    assert default_reserve(1 << 30, shared_memory_mount=True) == int((1 << 30) * 0.05)
    assert default_reserve(1 << 40, shared_memory_mount=True) == 1 << 30


def test_holding_begins_above_high_and_ends_below_low() -> None:
    hold = FillHold(0.8, 0.6)
    seen = []
    for used in (0, 80, 81, 70, 61, 60, 70, 80, 81):
        space = Space(used, 100 - used, 0, 0)
        room = headroom(space, [], reserve_bytes=0, high=0.8, low=0.6)
        seen.append(bool(hold.update(room, space)))
    assert seen == [False, False, True, True, True, False, False, False, True]


def test_inodes_hold_as_bytes_do_and_are_named() -> None:
    hold = FillHold(0.8, 0.6)
    reasons = []
    for free in (100, 19, 30, 41):
        space = Space(0, 100, 100, free)
        reasons.append(hold.update(headroom(space, [], reserve_bytes=0, high=0.8, low=0.6), space))
    assert [bool(reason) for reason in reasons] == [False, True, True, False]
    assert "inodes" in reasons[1]


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("64M", 64 << 20), ("64m", 64 << 20), ("1GiB", 1 << 30), ("1.5G", 3 << 29), ("2kB", 2000),
     ("500 MB", 500_000_000), ("1T", 1 << 40), ("12B", 12), ("8KiB", 8192)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "-1", "1X", "1e6", "1 2", "0x10", "1Mi B", "1iB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(("high", "low"), [(0.5, 0.5), (0.4, 0.5), (1.1, 0.5), (0.5, 0.0), (0.8, -1)])
def test_marks_must_make_sense(high: float, low: float) -> None:
    with pytest.raises(UsageError, match="--low"):
        MoverConfig(sources=(Path("/s"),), dst=Path("/d"), codec="zstd", high=high, low=low)


def test_mover_id_is_stable_and_fit_for_file_names() -> None:
    src = Path("/dev/shm/x")
    assert mover_id(src, host="node 1.cluster/α") == mover_id(src, host="node 1.cluster/α")
    assert mover_id(src, host="node 1.cluster/α").startswith("node-1-cluster-")
    assert mover_id(src, host="a") != mover_id(Path("/dev/shm/y"), host="a")
    assert len(mover_id(src, host="h" * 300)) < 60


# -- backlog


def waiting(row: int, *, size: int = 1, age: int = 0, rank: int = 0) -> Waiting:
    name = PartName.parse(part_name(f"hs-00c0ffee-{row:08d}-00", 0, 4, 4, rank=rank))
    return Waiting(name, size, -age)


def test_oldest_first_within_the_budget_and_large_parts_alone() -> None:
    backlog = Backlog(budget_bytes=100, budget_parts=10)
    for row, (size, age) in enumerate([(10, 1), (500, 3), (60, 2), (50, 0)]):
        backlog.add(waiting(row, size=size, age=age))
    large = backlog.take(0)
    assert large is not None
    assert large.size_bytes == 500
    assert backlog.take(0) is None
    backlog.done(large)
    taken = [backlog.take(0), backlog.take(0)]
    assert [part.size_bytes for part in taken if part] == [60, 10]
    assert backlog.take(0) is None
    assert backlog.size_bytes == 120


def test_one_rank_of_a_chunk_at_a_time() -> None:
    backlog = Backlog(budget_bytes=100, budget_parts=10)
    for rank in (0, 1):
        backlog.add(waiting(1, rank=rank, age=5 - rank))
    backlog.add(waiting(2))
    first, second = backlog.take(0), backlog.take(0)
    assert first is not None
    assert second is not None
    assert (first.name.rid.row, first.name.rank, second.name.rid.row) == (1, 0, 2)
    assert backlog.take(0) is None
    backlog.done(first)
    third = backlog.take(0)
    assert third is not None
    assert third.name.rank == 1


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(1, 120)), max_size=12), st.data())
def test_backlog_loses_nothing_and_keeps_its_bounds(items: list[tuple[int, int, int]], data: st.DataObject) -> None:
    backlog = Backlog(budget_bytes=100, budget_parts=3)
    alive: dict[str, Waiting] = {}
    for row, rank, size in items:
        part = waiting(row, rank=rank, size=size, age=data.draw(st.integers(0, 3)))
        if str(part.name) not in backlog:
            backlog.add(part)
            alive[str(part.name)] = part
    now_s, hand = 0.0, list[Waiting]()
    for _ in range(200):
        if not alive:
            break
        step = data.draw(st.sampled_from(["take", "done", "back", "vanish"]))
        if step == "take" and (taken := backlog.take(now_s)) is not None:
            hand.append(taken)
            total = sum(item.size_bytes for item in hand)
            assert len(hand) == 1 or (total <= 100 and len(hand) <= 3)
            chunks = [(item.name.rid, item.name.start) for item in hand]
            assert len(set(chunks)) == len(chunks)
        elif step == "done" and hand:
            finished = hand.pop()
            backlog.done(finished)
            del alive[str(finished.name)]
        elif step == "back" and hand:
            backlog.give_back(hand.pop(), retry_at_s=now_s + 1)
        elif step == "vanish":
            gone = data.draw(st.sampled_from(sorted(alive)))
            backlog.vanish([name for name in alive if name != gone])
            if not alive[gone].in_hand:
                del alive[gone]
        now_s += 0.5
        assert set(backlog.names) == set(alive)
        assert backlog.size_bytes == sum(part.size_bytes for part in alive.values())
        assert backlog.in_hand == len(hand)
    for rest in hand:
        backlog.done(rest)
        del alive[str(rest.name)]
    while (last := backlog.take(now_s + 1e9)) is not None:
        backlog.done(last)
        del alive[str(last.name)]
    assert not alive


# -- the rest


def test_pace_keeps_the_rate_and_can_be_lifted() -> None:
    pace = Pace(1_000_000)
    begin = time.monotonic()
    for _ in range(10):
        pace.take(100_000)
    assert 0.6 <= time.monotonic() - begin <= 1.5
    pace.lift()
    begin = time.monotonic()
    pace.take(100_000_000)
    assert time.monotonic() - begin < 0.1
    Pace(None).take(1 << 60)


MOUNTINFO = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""


def test_memory_cgroups_of_a_process() -> None:
    mounts = find_mounts(MOUNTINFO)
    assert mounts == Mounts(Path("/sys/fs/cgroup/unified"), "/box", Path("/sys/fs/cgroup/memory"), "/")
    text = "9:name=systemd:/x\n4:cpu,memory:/a/b\n0::/box/c\n"
    assert [str(path) for path in process_folders(text, mounts)] == [
        "/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/unified/c", "/sys/fs/cgroup/unified",
    ]  # fmt: skip
    assert [str(p) for p in process_folders("0::/../other\n", mounts)] == ["/sys/fs/cgroup/unified"]


def test_limits_of_both_cgroup_versions(tmp_path: Path) -> None:
    def put(folder: str, **files: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(text)

    put("v2", memory__max="max\n", memory__high="max\n", memory__stat="anon 1\n")
    stat = "anon 100\nfile 5000\nshmem 50\nslab_unreclaimable 7\nslab_reclaimable 999\nkernel_stack 3\n"
    put("v2/job", memory__max="1000\n", memory__high="900\n", memory__stat=stat)
    put("v1", memory__limit_in_bytes="9223372036854771712\n", memory__stat="total_rss 1\n")
    put("v1/job", memory__limit_in_bytes="800\n", memory__kmem__usage_in_bytes="11\n",
        memory__stat="rss 1\ntotal_rss 20\ntotal_shmem 30\ntotal_cache 700\n")  # fmt: skip
    put("proc/7", cgroup="4:memory:/job\n0::/job\n")
    found = memory_groups([7, 8], Mounts(tmp_path / "v2", "/", tmp_path / "v1", "/"), proc=tmp_path / "proc")
    assert [(Path(g.name).parent.name, g.limit_bytes, g.used_bytes) for g in found] == [
        ("v1", 800, 61),
        ("v2", 900, 160),
    ]


def test_the_host_and_what_is_memory() -> None:
    host = host_memory()
    assert 0 < host.used_bytes < host.limit_bytes
    mountinfo = Path("/proc/self/mountinfo").read_text()
    assert in_memory(Path("/dev/shm"), mountinfo)
    assert not in_memory(Path("/proc"), mountinfo)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9), hidden=st.integers(1, 40), slots=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]), data=st.data(),
)  # fmt: skip
def test_checks_agree_with_numpy(rows: int, hidden: int, slots: int, dtype: str, data: st.DataObject) -> None:
    import io

    from hs_formats.part import inspect_part

    kind = "<u4" if dtype == "float32" else "<u2"
    top = np.iinfo(kind).max
    bits = data.draw(
        st.lists(st.sampled_from([0, 1, 0x3F80, 0x4000, 0x7C00, 0x7F80, 0x7F800000, 0x8000, top]) | st.integers(0, top),
                 min_size=rows * slots * hidden, max_size=rows * slots * hidden)
    )  # fmt: skip
    states = np.array([bit & top for bit in bits], dtype=kind).reshape(rows, slots, hidden)
    rid = "hs-00c0ffee-00000001-00"
    content = make_part(
        rid, 0, rows, rows, hidden=hidden, dtype=dtype, boundaries=tuple(range(1, slots)), states=states
    )
    info = inspect_part(io.BytesIO(content), PartName.parse(part_name(rid, 0, rows, rows)))
    digest = PartDigest(info)

    def read_into(into: memoryview, at: int) -> int:
        count = min(len(into), 100)
        into[:count] = content[at : at + count]
        return count

    pieces = [bytes(piece) for piece in read_pieces(read_into, len(content), digest, pace=lambda _: None)]
    assert b"".join(pieces) == content
    if dtype == "bfloat16":
        values = (states.astype("<u4") << 16).view("<f4")
    else:
        values = states.view("<f4" if dtype == "float32" else "<f2")
    vectors = values.reshape(-1, hidden)
    bad = ~np.isfinite(vectors).all(axis=1)
    dead = (vectors == 0).all(axis=1)
    if hidden > 1:
        dead |= (states.reshape(-1, hidden) == states.reshape(-1, hidden)[:, :1]).all(axis=1)
    if bad.any():
        row, slot = divmod(int(bad.argmax()), slots)
        assert digest.problem.startswith(f"token {row}, slot {slot}: ")
    elif dead.any():
        row, slot = divmod(int(dead.argmax()), slots)
        assert digest.problem in (
            f"token {row}, slot {slot}: all zero",
            f"token {row}, slot {slot}: all channels equal",
        )
    else:
        assert digest.problem == ""


def test_threads_follow_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from hs_mover.config import default_threads

    for cores, threads in ((1, 2), (4, 4), (64, 16)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)))
        assert default_threads(Path("/data")) == threads
        assert default_threads(ObjectUrl("s3", "bucket")) == max(threads, 8)
