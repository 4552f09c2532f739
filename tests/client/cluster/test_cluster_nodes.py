"""Server and mover of a node: who is adopted, started, waited for and stopped; and what starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chain import wait_until
from hs_client.cluster import nodes
from hs_client.cluster.child import child_command
from hs_client.cluster.errors import LaunchFailed, LaunchRefused, MoverNotStarted
from hs_client.cluster.job import NodeJob
from hs_client.cluster.nodes import Services, last_error
from hs_client.cluster.record import Started, node_folder, read_started, running, write_started
from hs_formats.control import ControlFolder
from stub_launcher import write_stub

PORT = 8123


class Node:
    """A node whose `hs-server` is a stub, and its mover's is none."""

    def __init__(self, folder: Path) -> None:
        self.scratch = folder / "scratch"
        self.folder = folder / "state"
        self.said: list[str] = []
        self.stopping = threading.Event()

    def services(self, *server: str, launched: bool = True, mover: tuple[str, ...] | None = None) -> Services:
        job = NodeJob(
            number=0,
            version="1",
            arguments=(),
            folder="/",
            port=PORT,
            scratch=str(self.scratch),
            server=server if launched else None,
            mover=mover,
        )
        return Services(job, folder=self.folder, environment=os.environ, say=self.said.append, stopping=self.stopping)

    @property
    def servers(self) -> list[int]:
        return [marker.pid for marker in ControlFolder(self.scratch).live_markers(port=PORT)]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    stub = write_stub(tmp_path / "hs-server")
    monkeypatch.setattr(nodes, "program", lambda name: str(stub))
    node = Node(tmp_path)
    yield node
    for pid in node.servers:
        os.kill(pid, signal.SIGKILL)


def test_a_server_is_launched_and_stopped(node: Node) -> None:
    services = node.services("--model-path", "m", "--", "--tp-size", "8")
    services.prepare()
    (pid,) = node.servers
    services.close()
    assert node.servers == []
    wait_until(lambda: not running(pid), timeout_s=10, what="its end")
    assert read_started(node.folder) == Started()
    assert node.said == [f"launches its server on port {PORT}, which may take minutes"]


def test_a_server_that_was_there_stays(node: Node, tmp_path: Path) -> None:
    stub = nodes.program("hs-server")
    elsewhere = {**os.environ, "HS_STATE_DIR": str(tmp_path)}
    subprocess.run([stub, "launch", "--port", str(PORT), "--dump-dir", str(node.scratch)], env=elsewhere, check=True)
    before = node.servers
    # An actor was killed while it launched a server, which went with it: this one is somebody else's all the same.
    for left in (Started(), Started(launcher=2**22 + 1), Started(launcher=os.getpid())):
        write_started(node.folder, left)
        services = node.services()
        services.prepare()
        services.close()
        assert node.servers == before
        assert node.said[-1] == f"takes the server on port {PORT} that was there"


def test_the_server_of_an_actor_that_is_no_more_is_stopped_by_the_next_one(node: Node) -> None:
    node.services().prepare()
    services = node.services()
    services.prepare()
    assert node.said[-1] == f"takes the server on port {PORT} that an earlier run has left"
    assert len(node.servers) == 1
    services.close()
    assert node.servers == []


def test_what_tidies_up_stops_it_without_preparing_anything(node: Node) -> None:
    node.services().prepare()
    node.services().close()
    assert node.servers == []


def test_without_node_server_nothing_is_launched_and_nothing_stopped(node: Node) -> None:
    node.services(launched=False).prepare()
    assert node.servers == []
    node.services().prepare()
    node.services(launched=False).close()
    assert len(node.servers) == 1


@pytest.mark.parametrize(("code", "error"), [(2, LaunchRefused), (3, LaunchRefused), (4, LaunchFailed)])
def test_a_launch_that_fails_says_why(node: Node, code: int, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"it does not suit me; have another\): see .*launch.log"):
        node.services("--fail", str(code)).prepare()
    assert read_started(node.folder) == Started()


def test_a_launch_is_ended_when_nothing_is_to_be_started_any_more(node: Node) -> None:
    threading.Timer(0.5, node.stopping.set).start()
    begun_s = time.monotonic()
    node.services("--slow", "60").prepare()
    assert time.monotonic() - begun_s < 20
    assert node.servers == []
    assert read_started(node.folder) == Started()


def test_a_launch_under_way_is_waited_for(node: Node) -> None:
    stub = nodes.program("hs-server")
    launch = subprocess.Popen(
        [stub, "launch", "--port", str(PORT), "--dump-dir", str(node.scratch), "--slow", "1"],
        env={**os.environ, "HS_STATE_DIR": str(node.folder)},
        stdout=subprocess.DEVNULL,
    )
    write_started(node.folder, Started(launcher=launch.pid))
    waiter = threading.Thread(target=launch.wait)
    waiter.start()
    services = node.services()
    services.prepare()
    waiter.join()
    assert len(node.servers) == 1
    assert "that an earlier run has left" in node.said[-1]
    services.close()
    assert node.servers == []


@pytest.mark.parametrize("begun", [True, False])
def test_a_mover_of_ours_without_a_heartbeat_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    stub = tmp_path / "hs-mover"
    stub.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    stub.chmod(0o700)
    monkeypatch.setattr(nodes, "program", lambda name: str(tmp_path / name))
    monkeypatch.setattr(nodes, "_MOVER_START_S", 0.5)
    node = Node(tmp_path)
    services = node.services(launched=False, mover=("--dst", "/d"))
    with pytest.raises(MoverNotStarted, match="no heartbeat for"):
        services.prepare()
    pid = read_started(node.folder).mover
    assert running(pid)
    if begun:  # by an actor that is no more
        services = node.services(launched=False, mover=())
    services.close()
    assert not running(pid)
    assert read_started(node.folder) == Started()


def test_a_process_that_has_got_the_number_of_a_mover_stays(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    node = Node(tmp_path)
    try:
        write_started(node.folder, Started(mover=other.pid))
        node.services(launched=False, mover=()).close()
        assert other.poll() is None
        assert read_started(node.folder) == Started()
    finally:
        other.kill()
        other.wait()


def test_records_lie_apart_for_each_machine_and_scratch(tmp_path: Path) -> None:
    environment = {"HS_STATE_DIR": str(tmp_path)}
    one = node_folder(environment, Path("/dev/shm/a"))
    assert one.parent.name == os.uname().nodename
    assert one != node_folder(environment, Path("/dev/shm/b"))
    assert read_started(one) == Started()
    write_started(one, Started(mover=7))
    assert read_started(one) == Started(mover=7)
    (one / "started.json").write_text("{")
    assert read_started(one) == Started()


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    wait_until(lambda: not running(child.pid), timeout_s=20, what="its end")
    child.wait()
    assert running(os.getpid())
    assert not running(0)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ""),
        ("a\nb\n", "b"),
        ("error: one\nerror: two\n  do this\n  and that\nmore\n", "two; do this; and that"),
    ],
)
def test_the_last_error_of_a_log(tmp_path: Path, text: str, found: str) -> None:
    log = tmp_path / "log"
    log.write_text("error: of before\n" + text)
    assert last_error(log, len("error: of before\n")) == found
    assert last_error(tmp_path / "none", 0) == ""


def test_a_detached_child_is_nobodys_and_has_default_signals(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; print(os.getppid(), os.getsid(0), signal.getsignal(signal.SIGINT) is"
        " signal.default_int_handler, signal.pthread_sigmask(signal.SIG_BLOCK, []), flush=True); sys.exit(7)"
    )
    reader, report = os.pipe()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        done = subprocess.run(
            child_command([sys.executable, "-c", code], detach=tmp_path / "log", report=report),
            pass_fds=[report],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        os.close(report)
    assert done.stdout.strip().isdecimal()
    with os.fdopen(reader, "rb") as ending:
        assert ending.read() == b"exit 7\n"
    parent, session, default, blocked = (tmp_path / "log").read_text().split(maxsplit=3)
    assert int(parent) != os.getpid()
    assert int(session) != os.getsid(0)
    assert (default, blocked.strip()) == ("True", "set()")


def test_an_attached_child_keeps_its_number() -> None:
    process = subprocess.Popen(child_command([sys.executable, "-c", "import os; print(os.getpid())"]), stdout=-1)
    out, _ = process.communicate()
    assert int(out) == process.pid
