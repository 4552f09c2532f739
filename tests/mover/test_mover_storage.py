"""Full, vanishing and failing folders on real small file systems: sources are kept, clients held, work goes on."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hs_formats.control import ControlFolder, now_s
from hs_formats.errors import StorageError
from hs_mover import heartbeat
from hs_mover.destination import Destination
from movers import (
    MOVER,
    RUN,
    check_moved,
    drop,
    holding,
    lines_of,
    move_once,
    mover_process,
    mover_thread,
    moving,
    raw_lines,
    rid,
    scratch_parts,
    state_of,
    wait_for,
)  # fmt: skip
from parts import drop_part, register
from small_tmpfs import fill, small_tmpfs


@pytest.fixture
def src(tmp_path: Path) -> Path:
    register(tmp_path / "scratch", RUN, "set")
    return tmp_path / "scratch"


@pytest.fixture
def small_scratch(tmp_path: Path) -> Iterator[Path]:
    with small_tmpfs(tmp_path / "small", options="size=64m") as folder:
        register(folder, RUN, "set")
        yield folder


@pytest.mark.tmpfs
@pytest.mark.parametrize("options", ["size=1m", "size=64m,nr_inodes=12"])
def test_a_full_destination_holds_until_there_is_space(src: Path, tmp_path: Path, options: str) -> None:
    parts = drop(src, range(12))
    with small_tmpfs(tmp_path / "data", options=options) as dst, mover_process(src, dst) as process:
        wait_for(lambda: holding(src, "destination full"))
        time.sleep(1.5)
        assert holding(src, "destination full")
        kept = scratch_parts(src)
        assert kept
        assert sorted([*kept, *lines_of(dst / "set")]) == sorted(parts)
        assert process.poll() is None
        assert not list(dst.rglob("*.tmp"))
        subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=1000", str(dst)], check=True)
        wait_for(lambda: not scratch_parts(src))
        wait_for(lambda: moving(src))
        check_moved(dst / "set", parts)


@pytest.mark.tmpfs
def test_once_exits_5_when_the_destination_is_full(src: Path, tmp_path: Path) -> None:
    parts = drop(src, range(12))
    with small_tmpfs(tmp_path / "data", options="size=1m") as dst:
        result = subprocess.run(
            [*MOVER, "--src", str(src), "--dst", str(dst), "--once"], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 5
        assert "could not be moved: destination full" in result.stderr
        assert sorted([*scratch_parts(src), *lines_of(dst / "set")]) == sorted(parts)


@pytest.mark.tmpfs
def test_a_mover_starts_on_a_full_destination(src: Path, tmp_path: Path) -> None:
    parts = drop(src, range(3))
    with small_tmpfs(tmp_path / "data", options="size=4m") as dst:
        ballast = fill(dst)
        with mover_process(src, dst):
            wait_for(lambda: holding(src, "destination full"))
            ballast.unlink()
            wait_for(lambda: not scratch_parts(src))
            check_moved(dst / "set", parts)


def test_a_removed_destination_is_not_made_again(src: Path, tmp_path: Path) -> None:
    dst, away = tmp_path / "data", tmp_path / "away"
    first = drop(src, range(3))
    with mover_process(src, dst) as process:
        wait_for(lambda: not scratch_parts(src))
        dst.rename(away)
        wait_for(lambda: holding(src, "destination is gone"))  # without any part to move
        second = drop(src, range(3, 6))
        time.sleep(1.5)
        assert not dst.exists()
        assert sorted(scratch_parts(src)) == sorted(second)
        assert process.poll() is None
        away.rename(dst)
        wait_for(lambda: not scratch_parts(src))
        check_moved(dst / "set", {**first, **second})
        shutil.rmtree(dst)
        wait_for(lambda: holding(src, "destination is gone"))
        third = drop(src, range(6, 9))
        time.sleep(1.0)
        dst.mkdir()
        wait_for(lambda: not scratch_parts(src))
        check_moved(dst / "set", third)


@pytest.mark.tmpfs
def test_nothing_is_written_below_a_mount_point_that_lost_its_file_system(src: Path, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    dst = mount / "data"
    with small_tmpfs(mount, options="size=16m"), mover_process(src, dst):
        parts = drop(src, range(2))
        wait_for(lambda: not scratch_parts(src))
        check_moved(dst / "set", parts)
        subprocess.run(["umount", "-l", str(mount)], check=True)
        dst.mkdir()  # looks like an empty destination
        try:
            later = drop(src, range(2, 5))
            wait_for(lambda: holding(src, "destination is gone"))
            time.sleep(1.0)
            assert list(dst.iterdir()) == []
        finally:
            dst.rmdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], check=True)
        dst.mkdir()
        wait_for(lambda: not scratch_parts(src))
        check_moved(dst / "set", later)


def test_a_failing_disk_keeps_the_source(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = drop(src, range(2))
    plain = os.fsync

    def failing(fd: int) -> None:
        if str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(fd)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageError, match="could not be moved: destination fails"):
        move_once(src, tmp_path / "data")
    assert sorted(scratch_parts(src)) == sorted(parts)
    assert not list((tmp_path / "data").rglob("*.tmp"))
    monkeypatch.undo()
    move_once(src, tmp_path / "data")
    check_moved(tmp_path / "data" / "set", parts)


@pytest.mark.parametrize("call", ["fdatasync", "writev"])
def test_a_failing_manifest_keeps_the_source(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    parts = drop(src, range(3))
    dataset, plain, left = tmp_path / "data" / "set", getattr(os, call), [100]

    def failing(fd: int, *args: Any) -> Any:
        if left[0] and str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".jsonl"):
            left[0] -= 1
            if call == "writev":
                plain(fd, [bytes(args[0][0])[:25]])  # a part of the line gets through
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(fd, *args)

    monkeypatch.setattr(os, call, failing)
    with pytest.raises(StorageError, match="destination full"):
        move_once(src, tmp_path / "data", threads=1)
    assert sorted(scratch_parts(src)) == sorted(parts)
    before = len(raw_lines_that_parse(dataset))
    left[0] = 0
    move_once(src, tmp_path / "data")
    assert scratch_parts(src) == []
    assert sorted(lines_of(dataset)) == sorted(parts)
    assert before <= 3


def raw_lines_that_parse(dataset: Path) -> list[Any]:
    (manifest,) = (dataset / "manifest").glob("*.jsonl")
    found = []
    for line in manifest.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def test_a_line_whose_sync_failed_is_written_again(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = drop(src, range(6))
    plain, failed = os.fdatasync, list[int]()

    def failing(fd: int) -> None:
        manifest = str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".jsonl")
        if manifest and not failed:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        plain(fd)

    monkeypatch.setattr(os, "fdatasync", failing)
    with mover_thread(src, tmp_path / "data"):
        wait_for(lambda: not scratch_parts(src))
    assert failed
    lines = raw_lines(tmp_path / "data" / "set")
    assert len(lines) > len(parts)
    check_moved(tmp_path / "data" / "set", parts)


def test_each_step_is_durable_before_the_next(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (name,) = drop(src, range(1))
    steps: list[str] = []

    def path_of(target: Any) -> Path:
        return Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else Path(target)

    def watch(call: str) -> None:
        plain = getattr(os, call)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            path = path_of(args[0])
            result = plain(*args, **kwargs)
            if name[:30] in path.name or path.name in ("000000", f"{RUN}", "data", "manifest", "set"):
                steps.append(f"{call} {path.name}")
            elif path.suffix == ".jsonl":
                steps.append(f"{call} manifest file")
            return result

        monkeypatch.setattr(os, call, recorded)

    for call in ("fsync", "fdatasync", "rename", "unlink"):
        watch(call)
    move_once(src, tmp_path / "data")
    monkeypatch.undo()
    stem = name.removesuffix(".pt")
    order = [step for step in steps if stem in step or step in ("fsync 000000", "fdatasync manifest file")]
    (temporary,) = {step.removeprefix("fsync ") for step in steps if step.startswith("fsync .")}
    assert [step for step in order if not step.startswith(f"unlink {temporary}")] == [
        f"fsync {temporary}", f"rename {temporary}", "fsync 000000", "fdatasync manifest file", f"unlink {name}",
    ]  # fmt: skip
    assert steps.index("fsync data") < steps.index(f"fsync {temporary}")  # new parents too


# -- scratch


@pytest.mark.tmpfs
def test_limits_come_from_the_file_system(small_scratch: Path, tmp_path: Path) -> None:
    with mover_process(small_scratch, tmp_path / "data", "--high", "0.5", "--low", "0.25"):
        wait_for(lambda: state_of(small_scratch) is not None)
        state = state_of(small_scratch)
        assert state is not None
        assert (state.capacity_bytes, state.reserve_bytes) == (64 << 20, 0)
        assert (state.limit_bytes, state.low_bytes) == (32 << 20, 16 << 20)
        assert state.dst == str(tmp_path / "data")
        assert now_s() - state.heartbeat_s < 2
    with mover_process(small_scratch, tmp_path / "data", "--reserve", "14M"):
        wait_for(lambda: moving(small_scratch))
        state = state_of(small_scratch)
        assert state is not None
        assert state.capacity_bytes == 50 << 20
        assert state.limit_bytes == 40 << 20


@pytest.mark.tmpfs
def test_foreign_fill_holds_until_the_low_mark_even_when_nothing_fits_any_more(
    small_scratch: Path, tmp_path: Path
) -> None:
    with mover_process(small_scratch, tmp_path / "data"):
        wait_for(lambda: moving(small_scratch))
        ballast = fill(small_scratch)
        wait_for(lambda: holding(small_scratch, "scratch is filled"))
        state = state_of(small_scratch)
        assert state is not None
        assert state.used_bytes == state.capacity_bytes == 64 << 20
        with ballast.open("r+b") as file:
            file.truncate(45 << 20)  # between the marks
        time.sleep(2.5)
        assert holding(small_scratch, "scratch is filled")
        with ballast.open("r+b") as file:
            file.truncate(30 << 20)
        wait_for(lambda: moving(small_scratch))


@pytest.mark.tmpfs
def test_a_full_scratch_without_a_mover_file_is_emptied_all_the_same(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", options="size=4m") as src:
        register(src, RUN, "set")
        parts = drop(src, range(3))
        ballast = fill(src)
        with mover_process(src, tmp_path / "data"):
            wait_for(lambda: scratch_parts(src) == ["ballast"])
            check_moved(tmp_path / "data" / "set", parts)
            wait_for(lambda: state_of(src) is not None)
        ballast.unlink()


@pytest.mark.tmpfs
def test_inode_shortage_is_named(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "small", options="size=64m,nr_inodes=200") as src:
        register(src, RUN, "set")
        for row in range(165):
            (src / f"foreign-{row}").touch()
        with mover_process(src, tmp_path / "data"):
            wait_for(lambda: holding(src, "inodes"))
            for row in range(165):
                (src / f"foreign-{row}").unlink()
            wait_for(lambda: moving(src))


@pytest.mark.tmpfs
@pytest.mark.slow
def test_a_slow_mover_lets_a_credit_keeping_writer_stay_below_the_limit(small_scratch: Path, tmp_path: Path) -> None:
    src, peak, parts = small_scratch, 0, dict[str, bytes]()
    with mover_process(src, tmp_path / "data", "--limit-rate", "20M"):
        wait_for(lambda: moving(src))
        for row in range(200):
            while True:
                state, found = state_of(src), os.statvfs(src)
                used = (found.f_blocks - found.f_bfree) * found.f_frsize
                if state is not None and used + (1 << 20) <= state.limit_bytes and state.state == "moving":
                    break
                time.sleep(0.01)
            peak = max(peak, used)
            parts.update(drop(src, range(row, row + 1), tokens=256, hidden=256))
        wait_for(lambda: not scratch_parts(src), timeout_s=60)
    assert 0.6 * 0.8 * (64 << 20) <= peak <= 0.8 * (64 << 20)
    check_moved(tmp_path / "data" / "set", parts)


def test_a_scratch_folder_that_is_removed_comes_back(src: Path, tmp_path: Path) -> None:
    dst = tmp_path / "data"
    with mover_process(src, dst) as process:
        first = drop(src, range(2))
        wait_for(lambda: not scratch_parts(src))
        shutil.rmtree(src)
        wait_for((src / ".hs" / "mover.json").exists)
        register(src, RUN, "set")
        second = drop(src, range(2, 4))
        wait_for(lambda: not scratch_parts(src))
        assert process.poll() is None
        wait_for(lambda: moving(src))
        check_moved(dst / "set", {**first, **second})
        result = subprocess.run([*MOVER, "--src", str(src), "--dst", str(dst)], capture_output=True, text=True)
        assert result.returncode == 3
        assert str(process.pid) in result.stderr


def test_a_file_cut_while_it_is_read_is_an_error_and_no_signal(src: Path, tmp_path: Path) -> None:
    path = drop_part(src, rid(1), 0, 512, 512, hidden=1024)
    good = drop_part(src, rid(2), 0, 4, 4)
    size = path.stat().st_size
    with mover_process(src, tmp_path / "data", "--limit-rate", "2M", "--threads", "1") as process:
        time.sleep(1.0)
        os.truncate(path, size // 3)
        wait_for(lambda: not scratch_parts(src), timeout_s=30)
        assert process.poll() is None
    lines = lines_of(tmp_path / "data" / "set")
    assert lines[path.name].status == "quarantined"
    assert "zip" in lines[path.name].reason
    assert lines[good.name].status == "stored"


def test_a_destination_that_hangs_is_reported_and_the_heart_beats_on(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "STUCK_S", 1.0)
    answers = threading.Event()
    answers.set()
    plain = Destination.check

    def hanging(self: Destination) -> None:
        answers.wait(30)
        plain(self)

    monkeypatch.setattr(Destination, "check", hanging)
    with mover_thread(src, tmp_path / "data"):
        wait_for(lambda: moving(src))
        answers.clear()
        wait_for(lambda: holding(src, "does not answer"))
        state = state_of(src)
        assert state is not None
        assert state.alive(now_s())
        answers.set()
        wait_for(lambda: moving(src))


def test_slow_fsync_only_slows(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = drop(src, range(20))
    for call in ("fsync", "fdatasync"):
        plain = getattr(os, call)

        def slow(fd: int, plain: Callable[[int], None] = plain) -> None:
            time.sleep(0.05)
            plain(fd)

        monkeypatch.setattr(os, call, slow)
    beats: list[float] = []
    stop = threading.Event()

    def listen() -> None:
        while not stop.wait(0.1):
            state = ControlFolder(src).read_mover()
            if state is not None:
                beats.append(now_s() - state.heartbeat_s)

    listener = threading.Thread(target=listen)
    listener.start()
    move_once(src, tmp_path / "data")
    stop.set()
    listener.join()
    check_moved(tmp_path / "data" / "set", parts)
    assert max(beats) < 3
    assert len(raw_lines(tmp_path / "data" / "set")) == 20


def test_nobody_uses_a_folder_that_is_not_durable_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    destination = Destination(tmp_path)
    syncing, go_on = threading.Event(), threading.Event()

    def fsync_folder(folder: Path) -> None:
        syncing.set()
        go_on.wait(60)

    monkeypatch.setattr("hs_formats.durable.fsync_folder", fsync_folder)
    threads = [threading.Thread(target=destination.make, args=[tmp_path / "run"]) for _ in range(2)]
    threads[0].start()
    assert syncing.wait(60)
    threads[1].start()
    threads[1].join(0.3)
    early = not threads[1].is_alive()
    go_on.set()
    for thread in threads:
        thread.join()
    assert not early
