from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hs_server.orphans import find_orphans
from hs_server.processes import has_variable, list_processes
from hs_server.records import LaunchRecord, RecordStore
from launching import FAKE_SGLANG, HsServer, free_port, wait_for_line


class Lab:
    """One port, scratch and state folder, and the fake SGLang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.state = folder / "state"
        self.port = free_port()
        self.output = folder / "output"
        self.tag = f"{folder}"

    def server(self, modes: str = "", **environment: str) -> HsServer:
        return HsServer(
            self.state,
            {"PYTHONPATH": str(FAKE_SGLANG), "FAKE_SGLANG": modes, "HS_TEST_LAB": self.tag} | environment,
        )

    def launch_arguments(self, *more: str) -> tuple[str, ...]:
        return (
            *("launch", "--model-path", "some/model", "--port", str(self.port)),
            # The fake computes no states.
            *("--dump-dir", str(self.scratch), "--skip-doctor", *more),
        )

    def record(self) -> LaunchRecord | None:
        return RecordStore(self.state).find(self.port)

    def survivors(self) -> list[int]:
        return [process.pid for process in list_processes() if has_variable(process.pid, "HS_TEST_LAB", self.tag)]

    def wait_empty(self, timeout_s: float = 10.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.survivors():
            assert time.monotonic() < deadline, [
                (pid, Path(f"/proc/{pid}/cmdline").read_bytes()) for pid in self.survivors()
            ]
            time.sleep(0.05)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    for pid in made.survivors():
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def foreground(lab: Lab) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str, modes: str = "", ignore_hup: bool = False) -> subprocess.Popen[bytes]:
        arguments = lab.launch_arguments(*more)
        started.append(lab.server(modes).start(*arguments, output=lab.output, ignore_hup=ignore_hup))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_detached_launch_status_and_stop(lab: Lab) -> None:
    server = lab.server()
    done = server.run(*lab.launch_arguments("--detach", "--boundaries", "3,1", "--", "--tp-size", "2"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"ready http://127.0.0.1:{lab.port}"
    assert "armed on 2 of 2 ranks" in done.stdout
    assert "256 bytes per token" in done.stdout
    assert "doctor    NOT RUN (--skip-doctor)" in done.stdout
    assert str(lab.scratch) in done.stdout
    assert stat.S_IMODE(lab.scratch.stat().st_mode) == 0o700

    told = server.run("status", "--port", str(lab.port))
    assert told.returncode == 0
    assert "ready" in told.stdout
    assert "armed on 2 of 2 ranks: boundaries 1,3" in told.stdout
    assert "doctor    no pass on record" in told.stdout

    again = server.run(*lab.launch_arguments("--detach"))
    assert again.returncode == 3
    assert f"port {lab.port} is taken by pid" in again.stderr

    stopped = server.run("stop", "--port", str(lab.port))
    assert stopped.returncode == 0
    assert lab.survivors() == []
    assert server.run("status").returncode == 4
    assert server.run("stop").returncode == 4


def test_no_capture_is_dormant(lab: Lab) -> None:
    server = lab.server("", SGLANG_HS_DUMP_DIR=str(lab.scratch))
    arguments = ("launch", "--model-path", "some/model", "--port", str(lab.port), "--detach", "--no-capture")
    done = server.run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "dormant" in done.stdout
    assert not lab.scratch.exists()
    assert "capture   dormant" in server.run("status").stdout
    assert server.run("stop").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_whole_group(
    lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    launcher = foreground(modes="stray")
    wait_for_line(lab.output, "ready ")
    assert len(lab.survivors()) == 5
    launcher.send_signal(number)
    assert launcher.wait(30) == 0
    assert lab.survivors() == []
    assert lab.record() is None


def test_a_signal_before_ready_interrupts(lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]]) -> None:
    launcher = foreground(modes="never")
    wait_for_line(lab.output, "log ")
    time.sleep(0.5)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(30) == 130
    assert "SIGINT" in lab.output.read_text()
    assert lab.survivors() == []


def test_nohup_keeps_a_hangup_away(lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]]) -> None:
    launcher = foreground(ignore_hup=True)
    wait_for_line(lab.output, "ready ")
    launcher.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        launcher.wait(1.0)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 0


@pytest.mark.parametrize(
    ("modes", "line", "detach"),
    [("stray", "ready ", ()), ("never stray", "log ", ()), ("never stray", "log ", ("--detach",))],
    ids=["ready", "starting", "starting detached"],
)
def test_a_killed_launcher_takes_its_server_along(
    lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]], modes: str, line: str, detach: tuple[str, ...]
) -> None:
    launcher = foreground(*detach, modes=modes)
    wait_for_line(lab.output, line)
    # The launcher, its sentinel, the server, its child, and a child in a session of its own.
    deadline = time.monotonic() + 20
    while len(lab.survivors()) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    lab.wait_empty()
    assert lab.server().run("status").returncode == 4


def test_left_over_processes_are_ended_by_the_next_launch(lab: Lab) -> None:
    server = lab.server("stray")
    assert server.run(*lab.launch_arguments("--detach")).returncode == 0
    record = lab.record()
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    done = server.run(*lab.launch_arguments("--detach"))
    assert done.returncode == 0, done.stderr
    assert "ending 2 left-over processes" in done.stdout
    assert server.run("stop").returncode == 0
    assert lab.survivors() == []


def test_stop_ends_what_is_left_of_a_server_whose_record_is_lost(lab: Lab) -> None:
    server = lab.server("stray")
    assert server.run(*lab.launch_arguments("--detach")).returncode == 0
    record = lab.record()
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    RecordStore(lab.state).remove(record)
    left = [orphans.pids for orphans in find_orphans(lab.state)]
    assert [len(pids) for pids in left] == [2]
    # Another state folder's launches are nobody's business here.
    stranger = HsServer(lab.folder / "other state", server.environment)
    assert stranger.run("stop").returncode == 4
    assert server.run("stop", "--port", str(free_port())).returncode == 4
    assert len(lab.survivors()) == 2
    done = server.run("stop")
    assert done.returncode == 0, done.stderr
    assert f"ended 2 processes of a server on port {lab.port}" in done.stdout
    assert lab.survivors() == []


def test_a_running_server_whose_record_is_lost_is_stopped_gently(lab: Lab) -> None:
    server = lab.server()
    assert server.run(*lab.launch_arguments("--detach")).returncode == 0
    record = lab.record()
    assert record is not None
    RecordStore(lab.state).remove(record)
    (orphans,) = find_orphans(lab.state, port=lab.port)
    assert orphans.group == record.group
    assert server.run("stop").returncode == 0
    assert lab.survivors() == []


def test_stop_from_elsewhere_ends_the_launcher_cleanly(
    lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]]
) -> None:
    launcher = foreground()
    wait_for_line(lab.output, "ready ")
    assert lab.server().run("stop").returncode == 0
    assert launcher.wait(10) == 0
    assert lab.survivors() == []


@pytest.mark.slow
def test_what_ignores_sigterm_is_killed(lab: Lab, foreground: Callable[..., subprocess.Popen[bytes]]) -> None:
    launcher = foreground(modes="stubborn stray")
    wait_for_line(lab.output, "ready ")
    launcher.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    # A second signal makes it quick.
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(15) == 0
    assert lab.survivors() == []


@pytest.mark.parametrize(
    ("modes", "more", "code", "told"),
    [
        ("usage", (), 2, "SGLang does not take these arguments: no such flag"),
        ("die", (), 4, "exit code 7"),
        ("die", (), 4, "out of luck"),
        ("refuse", (), 3, "moon=full: states would howl\n  wait a week"),
        ("mute", (), 3, "no rank armed its capture"),
        ("one-rank", ("--", "--tp-size", "2"), 3, "only 1 of 2 ranks armed"),
        ("never", ("--startup-timeout", "2"), 4, "not ready after 2 s"),
        ("die-later", (), 4, "while serving"),
    ],
)
def test_failed_launches_leave_nothing_behind(
    lab: Lab, modes: str, more: tuple[str, ...], code: int, told: str
) -> None:
    done = lab.server(modes).run(*lab.launch_arguments(*more))
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert lab.survivors() == []
    assert lab.record() is None


def test_a_server_that_the_doctor_cannot_examine_is_stopped(lab: Lab) -> None:
    arguments = [argument for argument in lab.launch_arguments() if argument != "--skip-doctor"]
    done = lab.server().run(*arguments)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no server answers at" in done.stderr
    assert "ready" not in done.stdout
    assert lab.survivors() == []
    assert lab.record() is None


def test_systemd_is_told_when_it_is_ready_and_when_it_stops(lab: Lab) -> None:
    address = lab.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(address))
        listener.settimeout(60)
        launch = lab.server("", NOTIFY_SOCKET=str(address)).start(*lab.launch_arguments(), output=lab.output)
        assert listener.recv(4096) == b"READY=1"
        assert "ready " in lab.output.read_text()
        launch.terminate()
        assert listener.recv(4096) == b"STOPPING=1"
        assert launch.wait(60) == 0
    assert lab.survivors() == []


def test_excluded_plugin_is_refused_before_anything_starts(lab: Lab) -> None:
    done = lab.server("", SGLANG_PLUGINS="other").run(*lab.launch_arguments())
    assert done.returncode == 3
    assert "SGLANG_PLUGINS=other excludes the plugin `hs_capture`" in done.stderr
    assert not lab.scratch.exists()


def test_log_file(lab: Lab) -> None:
    log = lab.folder / "logs" / "mine.log"
    arguments = lab.launch_arguments("--detach", "--log", str(log))
    for _ in range(2):
        assert lab.server().run(*arguments).returncode == 0
        assert log.stat().st_mode & 0o777 == 0o600  # SGLang writes its arguments there, and with them the API key
        assert lab.server().run("stop").returncode == 0
    assert "fake sglang:" in log.read_text()
    assert "fake sglang:" in log.with_name("mine.log.old").read_text()
    refused = lab.server().run(*lab.launch_arguments("--log", "/proc/none/log"))
    assert refused.returncode == 2
    assert "--log" in refused.stderr


def test_several_servers_need_a_port_to_stop(lab: Lab) -> None:
    server, second = lab.server(), free_port()
    assert server.run(*lab.launch_arguments("--detach")).returncode == 0
    other = ("launch", "--model-path", "some/model", "--no-capture", "--detach", "--port", str(second))
    assert server.run(*other).returncode == 0
    refused = server.run("stop")
    assert refused.returncode == 2
    assert str(second) in refused.stderr
    assert server.run("status").stdout.count("ready") == 2
    for port in (lab.port, second):
        assert server.run("stop", "--port", str(port)).returncode == 0
    assert lab.survivors() == []
