"""Actors with real clients, movers and fake servers: what is adopted stays, what was started is stopped."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import running_mover, wait_until
from client_runs import Ledgers, check_records, ids_of, prompts, rows_of
from fake_server import Act, FakeServer, serving
from hs_client.cluster.driver import Driver
from hs_client.cluster.errors import NodesRefuse, NodesWithoutStorage
from hs_client.cluster.settings import ClusterSettings
from hs_client.cluster.view import View
from hs_client.run_cli import run
from hs_formats.control import ControlFolder, now_s
from hs_formats.ledger import Done
from launching import node_ports
from local_fleet import LocalFleet

pytestmark = pytest.mark.slow

ROWS = rows_of(70)


class Site:
    """Two nodes of this machine, each with a scratch and a fake server that answers slowly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = node_ports(2)
        self.dst = folder / "dst"
        self.fleet = LocalFleet(["a", "b"])
        self.stream = io.StringIO()
        self.servers: list[FakeServer] = []
        self.act: Callable[[int, str, list[int]], Act] = lambda number, rid, ids: Act(delay_s=0.05)

    def scratch(self, node: int) -> Path:
        return self.folder / f"scratch{node}"

    def settings(self, **changes: Any) -> ClusterSettings:
        prompts(self.folder / "p.jsonl", ROWS)
        url = f"http://127.0.0.1:{self.ports}"
        scratch = str(self.folder / "scratch{node}")
        given: dict[str, Any] = {
            "address": "auto",
            "nodes": 2,
            "resource": "hs_node",
            "gpus": 0.0,
            "server": None,
            "mover": ("--dst", str(self.dst)),
            "url": url,
            "scratch": Path(scratch),
            "command": run,
            "arguments": (
                *("run", "p.jsonl", "--ray", "--server", url, "--scratch", scratch, "--concurrency", "4"),
                *("--part-timeout", "5", "--mover-timeout", "20", "--server-timeout", "20"),
            ),
            "folder": str(self.folder),
            "environment": {"HS_STATE_DIR": str(self.folder / "state")},
            "version": "0.1.0",
            "progress_interval_s": 1.0,
            "summary_json": self.folder / "summary.json",
        }
        return ClusterSettings(**{**given, **changes})

    def driver(self, **changes: Any) -> Driver:
        settings = self.settings(**changes)
        return Driver(settings, self.fleet, View(interval_s=settings.progress_interval_s, stream=self.stream))

    def asked(self, number: int, rid: str, ids: list[int]) -> Act:
        return self.act(number, rid, ids)

    @property
    def told(self) -> str:
        return self.stream.getvalue()

    def done(self) -> Counter[str]:
        """How often each sample was done."""
        return Counter(line.sample_id for line in Ledgers.of(self.dst / "p").kinds(Done))

    def mover(self, node: int) -> int:
        """The process of the living mover; 0: none."""
        state = ControlFolder(self.scratch(node)).read_mover()
        return state.pid if state is not None and state.alive(now_s()) else 0

    def sent(self) -> int:
        return sum(len(server.requests) for server in self.servers)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    with contextlib.ExitStack() as stack:
        for node in range(2):
            site.scratch(node).mkdir(mode=0o700)
            port = int(site.ports.replace("{node}", str(node)))
            server = serving(site.scratch(node), port=port, act=site.asked)
            site.servers.append(stack.enter_context(server))
        try:
            yield site
        finally:
            site.fleet.close()
            for node in range(2):
                if site.mover(node):
                    os.kill(site.mover(node), signal.SIGTERM)


def later(site: Site, sent: int, action: Callable[[], object]) -> threading.Thread:
    """Do something once so many requests have come."""

    def wait() -> None:
        wait_until(lambda: site.sent() >= sent, timeout_s=90, what="requests", every_s=0.01)
        action()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_movers_are_started_and_stopped_and_every_row_is_done_once(site: Site) -> None:
    assert site.driver().run() == 0, site.told
    check_records(site.dst / "p", ids_of(ROWS))
    assert set(site.done().values()) == {1}
    assert min(len(server.requests) for server in site.servers) >= 10
    assert [site.mover(node) for node in range(2)] == [0, 0]
    assert f"samples    {len(ROWS)} done, 0 failed, 0 rejected, 0 done earlier" in site.told
    facts = json.loads((site.folder / "summary.json").read_text())
    assert facts["samples"]["done"] == len(ROWS)
    assert facts["tokens"] == sum(len(row["input_ids"]) for row in ROWS)
    assert sum(each["summary"]["samples"]["done"] for each in facts["nodes"]) == len(ROWS)
    # All is done: once more there is nothing to send.
    before = site.sent()
    assert site.driver().run() == 0, site.told
    assert site.sent() == before
    assert "0 done, 0 failed, 0 rejected, 70 done earlier" in site.told


def test_an_adopted_mover_stays(site: Site) -> None:
    with running_mover(site.scratch(0), site.dst, site.folder / "log"):
        adopted = site.mover(0)
        assert site.driver().run() == 0, site.told
        assert site.mover(0) == adopted
        assert site.mover(1) == 0
        assert f"takes the mover on {site.scratch(0)} that was there" in site.told


def test_a_killed_actor_is_replaced_and_its_mover_is_taken_over_and_stopped(site: Site) -> None:
    site.act = lambda number, rid, ids: Act(delay_s=0.3)
    killer = later(site, 20, lambda: site.fleet.kill(1))
    assert site.driver().run() == 0, site.told
    killer.join(10)
    check_records(site.dst / "p", ids_of(ROWS))
    # Its client stores what it has in flight, four requests at most, while others may already have these rows.
    done = site.done()
    assert len(done) == len(ROWS)
    assert sum(done.values()) <= len(ROWS) + 4
    assert "its actor is lost (it was killed)" in site.told
    assert [site.mover(node) for node in range(2)] == [0, 0]
    assert len(site.fleet.jobs) >= 3


def test_ctrl_c_stores_what_is_there_and_a_repeated_command_goes_on(site: Site) -> None:
    site.act = lambda number, rid, ids: Act(delay_s=0.3)
    interrupter = later(site, 20, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert site.driver().run() == 130, site.told
    interrupter.join(10)
    done = sum(site.done().values())
    assert 0 < done < len(ROWS)
    assert done == site.sent()
    assert [site.mover(node) for node in range(2)] == [0, 0]
    assert not [name for node in range(2) for name in os.listdir(site.scratch(node)) if name.startswith("hs-")]
    site.act = lambda number, rid, ids: Act()
    assert site.driver().run() == 0, site.told
    check_records(site.dst / "p", ids_of(ROWS))
    assert site.sent() == len(ROWS)


def test_a_client_without_a_server_is_named_with_its_reason(site: Site) -> None:
    site.servers[1].stop()
    site.act = lambda number, rid, ids: Act(delay_s=0.3)
    assert site.driver().run() == 0, site.told
    check_records(site.dst / "p", ids_of(ROWS))
    assert "warning: node 1 (b) is asked again soon: no server answers at" in site.told


def test_another_version_is_refused(site: Site) -> None:
    with pytest.raises(NodesRefuse, match=r"a, b: the node has hs-extract 0\.1\.0, and the driver 9\.9"):
        site.driver(version="9.9").run()


def test_a_wrong_option_of_the_client_is_shown(site: Site) -> None:
    arguments = (*site.settings().arguments, "--chat-template", "missing.jinja")
    with pytest.raises(NodesRefuse, match=r"the client says no more: .*missing\.jinja"):
        site.driver(arguments=arguments).run()


def test_a_mover_that_does_not_start_is_shown(site: Site) -> None:
    with pytest.raises(NodesWithoutStorage) as caught:
        site.driver(mover=("--dst", str(site.dst), "--codec", "nonsense")).run()
    assert "`hs-mover` does not start" in str(caught.value)
    assert "nonsense" in str(caught.value)
