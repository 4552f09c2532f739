from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hs_formats.control import STALE_S, ClientState, ControlFolder, HeldMarker, MoverState, RunState, now_s
from hs_formats.errors import FormatError
from hs_formats.failure_ring import FailureRing
from hs_formats.fixed_record import FixedRecord
from markers import make_marker
from small_tmpfs import fill, small_tmpfs

MARKER = make_marker()

MOVER = MoverState(
    pid=2,
    mover_id="host-shm",
    state="moving",
    reason="",
    dst="/data",
    heartbeat_s=100.0,
    last_progress_s=99.0,
    capacity_bytes=1 << 30,
    reserve_bytes=0,
    used_bytes=5,
    limit_bytes=1 << 29,
    low_bytes=1 << 28,
    backlog_parts=0,
    backlog_bytes=0,
    in_bytes_per_s=0.0,
    out_bytes_per_s=0,
    codec="zstd",
    high=0.8,
    low=0.6,
)


@pytest.fixture
def control(tmp_path: Path) -> ControlFolder:
    folder = ControlFolder(tmp_path / "scratch")
    folder.create()
    return folder


def test_create_makes_private_folders_and_is_repeatable(control: ControlFolder) -> None:
    control.root.chmod(0o755)
    control.create()
    for folder in (control.root, control.clients, control.runs):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert control.scratch.stat().st_mode & 0o777 == 0o700


def test_create_refuses_links_and_other_peoples_folders(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / ".hs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="link"):
        ControlFolder(tmp_path / "scratch").create()
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        with pytest.raises(FormatError, match="belongs to user 12345"):
            ControlFolder(tmp_path / "theirs").create()


_HOLD = """
import json, os, sys
from pathlib import Path
from hs_formats.control import ControlFolder, Marker
control = ControlFolder(Path(sys.argv[1]))
marker = Marker(**{**json.loads(sys.argv[2]), "pid": os.getpid()})
held = control.hold_marker(marker)
if sys.argv[3] == "fork":
    if os.fork() == 0:  # outlives its parent
        os.setsid()
        print(os.getpid(), flush=True)
        os.read(0, 1)
        os._exit(0)
else:
    print(os.getpid(), flush=True)
os.read(0, 1)
if sys.argv[3] == "release":
    held.release()
    print("released", flush=True)
    os.read(0, 1)
"""


def _holder(control: ControlFolder, mode: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(control.scratch), json.dumps(asdict(MARKER)), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_a_marker_lives_and_dies_with_its_process(
    control: ControlFolder, processes: list[subprocess.Popen[str]]
) -> None:
    process, pid = _holder(control, "stay")
    processes.append(process)
    expected = replace(MARKER, pid=pid)
    assert control.markers() == [(expected, True)]
    assert control.live_markers(port=8000) == [expected]
    assert control.live_markers(port=8001) == []
    process.send_signal(signal.SIGSTOP)  # stopped is not dead
    assert control.live_markers() == [expected]
    process.kill()
    process.wait()
    assert control.markers() == [(expected, False)]
    assert control.live_markers() == []


def test_release_makes_it_dead_while_the_process_lives(
    control: ControlFolder, processes: list[subprocess.Popen[str]]
) -> None:
    process, _ = _holder(control, "release")
    processes.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    assert len(control.live_markers()) == 1
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "released\n"
    assert control.live_markers() == []


def test_a_forked_child_does_not_keep_a_dead_marker_alive(
    control: ControlFolder, processes: list[subprocess.Popen[str]]
) -> None:
    process, child = _holder(control, "fork")
    processes.append(process)
    assert len(control.live_markers()) == 1
    process.kill()
    process.wait()
    assert os.path.exists(f"/proc/{child}")  # noqa: PTH110
    assert control.live_markers() == []
    os.kill(child, signal.SIGKILL)


def test_a_new_marker_replaces_a_dead_one_and_junk_is_skipped(control: ControlFolder) -> None:
    control.hold_marker(MARKER).release()
    assert control.markers() == [(MARKER, False)]
    held = control.hold_marker(replace(MARKER, nonce="f" * 16))
    assert [(marker.nonce, alive) for marker, alive in control.markers()] == [("f" * 16, True)]
    for number, junk in enumerate([b"", b"{", b"[]", b"{}", b"3", b"[" * 99999, b"\xff", b'{"nonce": 1}']):
        (control.root / f"server-{number}-r9.json").write_bytes(junk)
    (control.root / "server-x-r0.json").mkdir()
    assert len(control.markers()) == 1
    held.release()
    held.release()


def test_copies(control: ControlFolder) -> None:
    assert MARKER.copies == 1
    assert replace(MARKER, writers="all", expected_ranks=[0, 1]).copies == 2


@pytest.mark.tmpfs
def test_a_marker_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=64k") as scratch:
        control = ControlFolder(scratch)
        control.create()
        fill(scratch)
        with pytest.raises(OSError, match="No space left"):
            control.hold_marker(MARKER)
        assert sorted(os.listdir(control.root)) == ["clients", "runs"]


def test_the_movers_state(control: ControlFolder) -> None:
    assert control.read_mover() is None
    with FixedRecord(control.mover_file) as record:
        assert control.read_mover() is None
        record.write(asdict(MOVER))
        assert control.read_mover() == MOVER
        record.write(asdict(MOVER) | {"later": 1})
        assert control.read_mover() == MOVER
        record.write({"pid": 2})
        with pytest.raises(FormatError, match="missing"):
            control.read_mover()


def test_staleness() -> None:
    assert MOVER.alive(100.0)
    assert MOVER.alive(100.0 + STALE_S - 0.01)
    assert not MOVER.alive(100.0 + STALE_S)
    assert not replace(MOVER, state="stopping").alive(100.0)
    assert replace(MOVER, state="holding").alive(100.0)
    before = now_s()
    assert 0 <= now_s() - before < 1


def test_runs(control: ControlFolder) -> None:
    assert control.read_run("0000abcd") is None
    state = RunState(run="0000abcd", dataset="prompts", pid=3)
    control.register_run(state)
    assert control.read_run("0000abcd") == state
    assert os.listdir(control.runs) == ["0000abcd.json"]
    for junk in (b"", b"[]", b"{", b'{"run":"0000abcd"}', b"[" * 99999):
        (control.runs / "0000abce.json").write_bytes(junk)
        assert control.read_run("0000abce") is None
    for bad in ("../x", "", "0000ABCD", "0000abcd\n"):
        with pytest.raises(FormatError):
            control.read_run(bad)
        with pytest.raises(FormatError):
            control.client_record(bad)


def test_clients(control: ControlFolder) -> None:
    assert control.read_clients() == []
    states = [ClientState(run=f"0000000{n}", pid=n, heartbeat_s=1.5 * n, promised_bytes=n << 33) for n in (1, 2)]
    for state in states:
        with control.client_record(state.run) as record:
            assert state not in control.read_clients()
            record.write(asdict(state))
    (control.clients / "junk.json").write_bytes(b"junk")
    assert control.read_clients() == states
    control.remove_client("00000001")
    control.remove_client("00000001")
    assert control.read_clients() == states[1:]


def test_credit_excludes_threads_and_processes(control: ControlFolder) -> None:
    program = (
        "import sys; from pathlib import Path; from hs_formats.control import ControlFolder\n"
        "path = Path(sys.argv[1])\n"
        "for _ in range(200):\n"
        "    with ControlFolder(path).credit():\n"
        "        counter = path / 'counter'\n"
        "        counter.write_text(str(int(counter.read_text()) + 1))\n"
    )
    (control.scratch / "counter").write_text("0")
    running = [subprocess.Popen([sys.executable, "-c", program, str(control.scratch)]) for _ in range(2)]

    def count() -> None:
        for _ in range(200):
            with control.credit():
                counter = control.scratch / "counter"
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in running] == [0, 0]
    assert (control.scratch / "counter").read_text() == "800"


def test_credit_is_given_back_when_its_holder_is_killed(control: ControlFolder) -> None:
    program = (
        "import os, sys; from pathlib import Path; from hs_formats.control import ControlFolder\n"
        "with ControlFolder(Path(sys.argv[1])).credit():\n"
        "    print('held', flush=True); os.read(0, 1)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(control.scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.kill()
    process.communicate()
    with control.credit():
        pass


def test_failure_paths(control: ControlFolder) -> None:
    control.failure_path(2, 1).touch()
    control.failure_path(1, 0).touch()
    assert [path.name for path in control.failure_paths()] == ["failed-1-r0", "failed-2-r1"]


def test_what_dead_servers_leave_is_removed_once_clients_had_time_to_read_it(control: ControlFolder) -> None:
    def leave(pid: int, *, failed_s_ago: float) -> HeldMarker:
        held = control.hold_marker(replace(MARKER, pid=pid))
        ring = FailureRing(control.failure_path(pid, 0), slots=4)
        ring.close()
        failed_s = time.time() - failed_s_ago
        os.utime(ring.path, (failed_s, failed_s))
        FixedRecord(control.statistics_path(pid, 0)).close()
        return held

    long_dead, just_dead, living = (leave(pid, failed_s_ago=age) for pid, age in ((11, 500.0), (12, 5.0), (13, 500.0)))
    starting = FailureRing(control.failure_path(14, 0), slots=4)  # its marker is still to come
    os.utime(starting.path, (0, 0))
    long_dead.release()
    just_dead.release()
    assert control.remove_dead_servers(keep_s=60) == 1
    assert [marker.pid for marker, _ in control.markers()] == [12, 13]
    assert [path.name for path in control.failure_paths()] == ["failed-12-r0", "failed-13-r0", "failed-14-r0"]
    assert not control.statistics_path(11, 0).exists()
    assert control.statistics_path(13, 0).exists()
    starting.close()
    living.release()
