"""Faults that only a real system makes: file systems that are tiny, read-only or foreign, processes that are stopped,
files that cannot be deleted or were deleted and live on, an overflowing event queue, two movers that look alike."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hs_formats.control import now_s
from hs_formats.errors import PreflightError, StorageError
from hs_mover import name as name_module
from hs_mover.deleted import deleted_files, describe
from hs_mover.destination import Destination
from hs_mover.name import LOCKS_FOLDER, MoverName, NameTaken
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
from parts import drop_part, make_part, register
from small_tmpfs import small_tmpfs


@pytest.fixture
def src(tmp_path: Path) -> Path:
    register(tmp_path / "scratch", RUN, "set")
    return tmp_path / "scratch"


# -- the destination


@pytest.mark.tmpfs
def test_a_tiny_disk_fills_and_is_emptied(src: Path, tmp_path: Path) -> None:
    image, dst = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    dst.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(dst)], check=True)
    try:
        ballast = dst / "ballast"
        ballast.write_bytes(b"\1" * (1500 << 10))
        parts = drop(src, range(10))
        with mover_process(src, dst):
            wait_for(lambda: holding(src, "destination full"))
            kept = scratch_parts(src)
            assert sorted([*kept, *lines_of(dst / "set")]) == sorted(parts)
            ballast.unlink()
            wait_for(lambda: not scratch_parts(src))
        check_moved(dst / "set", parts)
    finally:
        subprocess.run(["umount", str(dst)], check=True)


@pytest.mark.tmpfs
def test_a_read_only_destination_is_refused_at_the_start(src: Path, tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "data", options="size=64m,ro") as dst:
        result = subprocess.run(
            [*MOVER, "--src", str(src), "--dst", str(dst), "--once"], capture_output=True, text=True, timeout=60
        )
    assert result.returncode == 3
    assert "destination is read-only: remount" in result.stderr


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.EDQUOT, errno.EROFS])
def test_errors_of_network_file_systems_keep_the_source(
    src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    parts, plain, broken = drop(src, range(3)), os.writev, [True]

    def failing(fd: int, pieces: list[bytes]) -> int:
        if broken[0] and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".tmp":
            raise OSError(number, os.strerror(number))
        return plain(fd, pieces)

    monkeypatch.setattr(os, "writev", failing)
    with mover_thread(src, tmp_path / "data"):
        wait_for(lambda: holding(src, os.strerror(number)))
        assert sorted(scratch_parts(src)) == sorted(parts)
        broken[0] = False
        wait_for(lambda: not scratch_parts(src))
        wait_for(lambda: moving(src))
    check_moved(tmp_path / "data" / "set", parts)


@pytest.mark.tmpfs
def test_three_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        small_tmpfs(tmp_path / "scratch", options="size=64m") as src,
        small_tmpfs(tmp_path / "temporary", options="size=64m") as temporary,
    ):
        register(src, RUN, "set")
        monkeypatch.setenv("TMPDIR", str(temporary))
        parts = drop(src, range(5))
        with mover_process(src, tmp_path / "data"):
            wait_for(lambda: not scratch_parts(src))
        check_moved(tmp_path / "data" / "set", parts)
        assert list(temporary.iterdir()) == []


# -- scratch


@pytest.mark.tmpfs
def test_a_source_that_cannot_be_deleted_holds_and_is_not_stored_twice(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=64m") as src:
        register(src, RUN, "set")
        parts = drop(src, range(3))
        stuck = src / sorted(parts)[1]
        if subprocess.run(["chattr", "+i", str(stuck)], capture_output=True, check=False).returncode:
            pytest.skip("this kernel's tmpfs has no immutable files")
        log = tmp_path / "log"
        with mover_process(src, tmp_path / "data", log=log) as process:
            wait_for(lambda: holding(src, "cannot be deleted"))
            wait_for(lambda: scratch_parts(src) == [stuck.name])
            time.sleep(2.2)
            assert process.poll() is None
            state = state_of(src)
            assert state is not None
            assert state.left_alone_parts == 1
            subprocess.run(["chattr", "-i", str(stuck)], check=True)
            wait_for(lambda: not scratch_parts(src))
            wait_for(lambda: moving(src))
        check_moved(tmp_path / "data" / "set", parts)
        assert len(raw_lines(tmp_path / "data" / "set")) == 3
        assert log.read_text().count("cannot be deleted") == 1
        again = drop_part(src, rid(9), 0, 4, 4)
        subprocess.run(["chattr", "+i", str(again)], check=True)
        try:
            with pytest.raises(StorageError, match="1 parts could not be moved: stored parts cannot be deleted"):
                move_once(src, tmp_path / "data")
        finally:
            subprocess.run(["chattr", "-i", str(again)], check=True)


@pytest.mark.tmpfs
def test_deleted_files_that_are_still_open_are_named(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=64m") as src:
        register(src, RUN, "set")
        with (src / "buffer").open("wb") as file:
            file.write(b"\1" * (56 << 20))
            file.flush()
            (src / "buffer").unlink()
            assert deleted_files(src.stat().st_dev)[0].pid == os.getpid()
            with mover_process(src, tmp_path / "data"):
                wait_for(lambda: holding(src, "deleted files"))
                state = state_of(src)
                assert state is not None
                assert f"{56 << 20} bytes are deleted files that" in state.reason
                assert f"(pid {os.getpid()})" in state.reason
                file.close()
                wait_for(lambda: moving(src))


def test_deleted_files_are_counted_once(tmp_path: Path) -> None:
    import mmap

    device = tmp_path.stat().st_dev
    before = {holder.pid: holder.size_bytes for holder in deleted_files(device)}.get(os.getpid(), 0)
    with (tmp_path / "f").open("w+b") as file:
        file.write(b"\1" * 81920)
        file.flush()
        mapped, second = mmap.mmap(file.fileno(), 81920), os.dup(file.fileno())
        (tmp_path / "f").unlink()
        found = {holder.pid: holder for holder in deleted_files(device)}[os.getpid()]
        assert found.size_bytes - before == 81920
        os.close(second)
    found = {holder.pid: holder for holder in deleted_files(device)}[os.getpid()]  # mmap keeps a descriptor of its own
    assert found.size_bytes - before == 81920
    mapped.close()
    assert describe([]) == ""
    assert describe([found]).endswith(f"{found.command} (pid {os.getpid()}) still have open")


@pytest.mark.parametrize(
    ("mode", "remedy"), [(0o755, "chmod 700"), (0o711, "chmod 700"), (0o1777, "that one is everybody's")]
)
def test_a_scratch_that_others_may_enter_is_refused(src: Path, tmp_path: Path, mode: int, remedy: str) -> None:
    src.chmod(mode)
    with pytest.raises(PreflightError, match=rf"open to others \(mode {mode:04o}\): {remedy}"):
        move_once(src, tmp_path / "data")


def watches(pid: int) -> bool:
    """The process has asked the kernel for events."""
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(OSError):
            if "inotify wd" in info.read_text():
                return True
    return False


@pytest.mark.slow
def test_a_stopped_mover_goes_on_and_an_overflow_of_events_loses_nothing(tmp_path: Path) -> None:
    src, log = tmp_path / "scratch", tmp_path / "log"
    register(src, RUN, "set")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    with mover_process(src, tmp_path / "data", log=log) as process:
        wait_for(lambda: moving(src) and watches(process.pid))
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        parts = {}
        for row in range(limit // 2):  # each one is closed, renamed from and renamed to
            data = make_part(rid(row), 0, 1, 1)
            path = drop_part(src, rid(row), 0, 1, 1, data=data)
            parts[path.name] = data
        wait_for(lambda: (state := state_of(src)) is not None and not state.alive(now_s()))
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: not scratch_parts(src), timeout_s=120)
        wait_for(lambda: moving(src))
    check_moved(tmp_path / "data" / "set", parts)
    assert len(raw_lines(tmp_path / "data" / "set")) == len(parts)
    assert "Inotify queue overflowed" in log.read_text()


# -- movers that look alike


@pytest.fixture
def look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_module, "mover_id", lambda _: "host-0000")


@pytest.mark.usefixtures("look_alike")
def test_two_movers_with_one_name_write_two_manifests(src: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    register(other, "0badcafe", "set")
    dst = tmp_path / "data"
    with mover_thread(src, dst) as one, mover_thread(other, dst) as two:
        assert (one.mover_id, two.mover_id) == ("host-0000", "host-0000-2")
        parts = drop(src, range(4))
        path = drop_part(other, "hs-0badcafe-00000001-00", 0, 4, 4)
        parts[path.name] = path.read_bytes()
        wait_for(lambda: not scratch_parts(src) and not scratch_parts(other))
        state = state_of(other)
        assert state is not None
        assert state.mover_id == "host-0000-2"
    check_moved(dst / "set", parts)
    assert sorted(file.name for file in (dst / "set" / "manifest").iterdir()) == [
        "host-0000-2.jsonl", "host-0000.jsonl",
    ]  # fmt: skip
    with mover_thread(other, dst) as again:
        assert again.mover_id == "host-0000"


@pytest.fixture
def destination(tmp_path: Path) -> Destination:
    (tmp_path / "data").mkdir()
    return Destination(tmp_path / "data")


@pytest.mark.usefixtures("look_alike")
def test_a_name_that_another_mover_took_meanwhile(destination: Destination) -> None:
    one, two = MoverName(Path("/s"), destination), MoverName(Path("/s"), destination)
    one.claim()
    one.ensure()
    (destination.root / LOCKS_FOLDER / "host-0000.lock").unlink()
    one.ensure()  # makes the lock anew
    one.release()
    two.claim()
    assert two.text == "host-0000"
    with pytest.raises(NameTaken, match="another mover took the name host-0000"):
        one.ensure()
    two.release()
    one.ensure()
    one.release()


@pytest.mark.usefixtures("look_alike")
def test_a_destination_without_locks(
    destination: Destination, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    made = MoverName(Path("/s"), destination)
    made.claim()
    made.ensure()
    assert made.text == "host-0000"
    assert any("takes no locks" in message for message in caplog.messages)
