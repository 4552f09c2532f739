"""`hs-client run --ray` as a command on a real Ray cluster, with fake servers: what signals and repetitions do."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from chain import command, wait_until
from client_runs import Ledgers, check_records, ids_of, prompts, rows_of
from fake_server import Act, FakeServer, serving
from hs_client.cluster.record import running
from hs_formats.control import ControlFolder, now_s
from hs_formats.ledger import Done
from launching import node_ports
from ray_cluster import RESOURCE, ray_cluster, ray_environment

pytestmark = pytest.mark.slow

ROWS = rows_of(70)
NODES = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    pytest.importorskip("ray")
    with ray_cluster(NODES) as address:
        yield address


class Site:
    """The scratches, fake servers and drivers of a test."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.ports = node_ports(NODES)
        self.dst = folder / "dst"
        self.servers: list[FakeServer] = []
        self.delay_s = 0.3
        self.started: list[subprocess.Popen[bytes]] = []
        prompts(folder / "p.jsonl", ROWS)

    def scratch(self, node: int) -> Path:
        return self.folder / f"s{node}"

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """A driver with its output in the log `name`."""
        argv = [command("hs-client"), "run", "p.jsonl", *options, "--node-mover", f"--dst {self.dst}"]
        argv += ["--server", f"http://127.0.0.1:{self.ports}", "--scratch", str(self.folder / "s{node}")]
        argv += ["--nodes", str(NODES), "--node-resource", RESOURCE, "--concurrency", "4", "--progress-interval", "1"]
        environment = {**ray_environment(), "HS_STATE_DIR": str(self.folder / "state")}
        with (self.folder / name).open("ab") as output:
            process = subprocess.Popen(
                [*argv, "--ray", self.address],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=self.folder,
            )
        self.started.append(process)
        return process

    def told(self, name: str) -> str:
        return (self.folder / name).read_text()

    def mover(self, node: int) -> int:
        """The process of the living mover; 0: none."""
        state = ControlFolder(self.scratch(node)).read_mover()
        return state.pid if state is not None and state.alive(now_s()) else 0

    def sent(self) -> int:
        return sum(len(server.requests) for server in self.servers)

    def wait_sent(self, count: int, process: subprocess.Popen[bytes], name: str) -> None:
        def enough() -> bool:
            assert process.poll() is None, self.told(name)
            return self.sent() >= count

        wait_until(enough, timeout_s=180, what=f"{count} requests", every_s=0.01)

    def clients(self) -> list[int]:
        """Processes of clients of this test."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes()
                if b"--leases" in words and str(self.folder).encode() in words and b"cluster.child" not in words:
                    found.append(int(path.parent.name))
        return found

    def check(self) -> None:
        """Every row is there once, and nothing of what was started runs on."""
        check_records(self.dst / "p", ids_of(ROWS))
        done = Counter(line.sample_id for line in Ledgers.of(self.dst / "p").kinds(Done))
        assert set(done.values()) == {1}
        assert [self.mover(node) for node in range(NODES)] == [0, 0]
        assert self.clients() == []


@pytest.fixture
def site(tmp_path: Path, cluster: str) -> Iterator[Site]:
    site = Site(tmp_path, cluster)
    with contextlib.ExitStack() as stack:
        for node in range(NODES):
            site.scratch(node).mkdir(mode=0o700)
            port = int(site.ports.replace("{node}", str(node)))
            act: Callable[[int, str, list[int]], Act] = lambda *_: Act(delay_s=site.delay_s)  # noqa: E731
            site.servers.append(stack.enter_context(serving(site.scratch(node), port=port, act=act)))
        try:
            yield site
        finally:
            for process in site.started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            for node in range(NODES):
                if site.mover(node):
                    os.kill(site.mover(node), signal.SIGTERM)


def test_the_driver_is_killed_and_the_repeated_command_takes_over(site: Site) -> None:
    first = site.start("first.log")
    site.wait_sent(20, first, "first.log")
    first.kill()
    first.wait()
    # Without a holder the clients store what is in flight and end by themselves; the movers stay.
    wait_until(lambda: not site.clients(), timeout_s=60, what="the end of the clients")
    movers = [site.mover(node) for node in range(NODES)]
    assert all(movers)
    site.delay_s = 0.0
    second = site.start("second.log")
    assert second.wait(180) == 0, site.told("second.log")
    told = site.told("second.log")
    assert len(re.findall(r"takes the mover on .* that an earlier run has left", told)) == NODES
    site.check()
    assert not any(map(running, movers))
    # The clients of the first run have stored what they had sent.
    assert site.sent() == len(ROWS)


def test_ctrl_c_drains_all_nodes(site: Site) -> None:
    first = site.start("first.log")
    site.wait_sent(20, first, "first.log")
    first.send_signal(signal.SIGINT)
    assert first.wait(120) == 130, site.told("first.log")
    told = site.told("first.log")
    assert "interrupted: nothing more is sent, what is in flight is stored" in told
    assert "interrupted: repeat the command to go on" in told
    assert "Traceback" not in told
    sent = site.sent()
    done = len(Ledgers.of(site.dst / "p").kinds(Done))
    assert 0 < done == sent < len(ROWS)
    assert [site.mover(node) for node in range(NODES)] == [0, 0]
    assert f"{done} done" in told
    assert f"{len(ROWS) - done} pending" in told
    site.delay_s = 0.0
    assert site.start("second.log").wait(180) == 0, site.told("second.log")
    site.check()
    assert site.sent() == len(ROWS)


def test_the_second_ctrl_c_leaves_at_once(site: Site) -> None:
    site.delay_s = 20.0
    first = site.start("first.log")
    site.wait_sent(4, first, "first.log")
    first.send_signal(signal.SIGTERM)
    wait_until(lambda: "again to leave at once" in site.told("first.log"), timeout_s=30, what="the first")
    first.send_signal(signal.SIGINT)
    assert first.wait(15) == 130, site.told("first.log")
    assert "what was started on the nodes may run on" in site.told("first.log")
    site.delay_s = 0.0
    wait_until(lambda: not site.clients(), timeout_s=60, what="the end of the clients")
    assert site.start("second.log").wait(180) == 0, site.told("second.log")
    site.check()


def test_nothing_listens_beyond_this_machine(site: Site) -> None:
    """Of what a run starts; Ray's own ports are those of the cluster that the test has started."""
    site.delay_s = 0.1
    process = site.start("first.log")
    site.wait_sent(10, process, "first.log")
    found = listening()
    assert found
    assert [each for each in found if each[0] not in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == []
    assert process.wait(180) == 0, site.told("first.log")


def listening() -> list[tuple[str, int]]:
    """Addresses at which processes of Ray and of ours listen, with their pids."""
    found: list[tuple[str, int]] = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if not any(word in words for word in ("ray/", "ray::", "--leases", "hs-mover")):
            continue
        with contextlib.suppress(psutil.Error):
            ports = process.net_connections(kind="inet")
            found += [(each.laddr.ip, process.pid) for each in ports if each.status == psutil.CONN_LISTEN]
    return found


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster can be used at 127.0.0.1:1"),
        ("p.jsonl", "--ray p.jsonl: an address is HOST:PORT"),
    ],
)
def test_what_is_no_cluster(tmp_path: Path, address: str, message: str) -> None:
    prompts(tmp_path / "p.jsonl", ROWS)
    done = subprocess.run(
        [command("hs-client"), "run", str(tmp_path / "p.jsonl"), "--ray", address],
        capture_output=True,
        text=True,
        check=False,
        env=ray_environment(),
        timeout=170,
    )
    assert message in done.stderr
    assert done.returncode == (3 if address.startswith("127") else 2)
    assert "Traceback" not in done.stderr
