"""The whole chain into a bucket: clients, two movers, kills, errors, outages; every sample once, whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client_runs import client, end_started, prompts, start
from fake_server import Act, FakeServer, serving
from movers import wait_for
from object_checker import book_lines, check_samples
from object_mover import Mover
from object_servers import FaultProxy, MotoServer, fault_proxy, with_environment

Rows = list[dict[str, Any]]

OUTAGE_S = float(os.environ.get("HS_TEST_OUTAGE_S", "6"))
"""How long the store is away: longer than one request is tried again. In the long form 30."""


def rows_of(count: int) -> Rows:
    return [{"id": f"s{i}", "input_ids": [(7 * i + j) % 300 for j in range(1, 3 + i % 40)]} for i in range(count)]


def ids_of(rows: Rows) -> dict[str, list[int]]:
    return {row["id"]: row["input_ids"] for row in rows}


@contextlib.contextmanager
def movers(server: MotoServer, tmp_path: Path, url: str, port: int | None = None) -> Iterator[list[Mover]]:
    """Two movers, each with a scratch of its own, that store to `url`."""
    environment = {**with_environment(server, port), "HS_STORE_RETRY_S": "1", "HS_CACHE_DIR": str(tmp_path / "m")}
    found: list[Mover] = []
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir(mode=0o700)
            found.append(Mover(tmp_path / name, url, environment, tmp_path / f"{name}.log"))
        yield found
        for mover in found:
            mover.end()
    finally:
        for mover in found:
            mover.process.kill()
            mover.process.wait()


@pytest.fixture
def proxy(reachable: MotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between this process's children and the server."""
    with fault_proxy(reachable) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.port}")
        monkeypatch.setenv("HS_STORE_RETRY_S", "1")
        yield found


@pytest.fixture(autouse=True)
def _nobody_left() -> Iterator[None]:
    yield
    end_started()


def _also(server: FakeServer) -> list[str]:
    return ["--server", f"{server.url}={server.scratch}"]


@pytest.mark.slow
def test_two_movers_and_one_client_make_one_dataset(reachable: MotoServer, prefix: str, tmp_path: Path) -> None:
    rows = rows_of(60)
    url = f"s3://{reachable.bucket.name}/{prefix}"
    file = prompts(tmp_path / "p.jsonl", rows)
    with (
        movers(reachable, tmp_path, url) as (one, two),
        serving(one.scratch, act=lambda *_: Act(delay_s=0.02)) as first,
        serving(two.scratch, act=lambda *_: Act(delay_s=0.02)) as second,
    ):
        ended = client(first, file, *_also(second), "--concurrency", "4")
        assert ended.code == 0, ended.text
        assert f"dataset    {url}/p" in ended.text
        assert first.requests
        assert second.requests
        assert "nothing to send" in client(first, file, *_also(second)).text
        more = prompts(tmp_path / "more.jsonl", rows_of(70))
        ended = client(second, more, "--dataset", "p")
        assert ended.code == 0, ended.text
    check_samples(reachable.bucket, f"{prefix}/p", ids_of(rows_of(70)))
    assert len(book_lines(reachable.bucket, f"{prefix}/p/manifest")) == 2
    assert len(reachable.bucket.keys(f"{prefix}/p/ledger/")) == 2, "a segment for each run, in the end"
    assert len(reachable.bucket.keys(f"{prefix}/p/timeline/")) == 2
    from hs_formats.reader import HiddenStateDataset

    data = HiddenStateDataset(f"{url}/p")
    assert {name: data[name].input_ids.tolist() for name in data.sample_ids} == ids_of(rows_of(70))


@pytest.mark.slow
def test_kills_of_movers_and_clients_lose_and_double_nothing(
    reachable: MotoServer, prefix: str, tmp_path: Path
) -> None:
    rows = rows_of(200)
    file = prompts(tmp_path / "p.jsonl", rows)
    url = f"s3://{reachable.bucket.name}/{prefix}"
    with (
        movers(reachable, tmp_path, url) as (one, two),
        serving(one.scratch, act=lambda *_: Act(delay_s=0.1)) as first,
        serving(two.scratch, act=lambda *_: Act(delay_s=0.1)) as second,
    ):
        for turn in range(4):
            before = len(first.requests) + len(second.requests)
            run = start(first, file, *_also(second), "--concurrency", "3", log=tmp_path / "client.log")
            _requests(first, second, before + 12, run)
            (one, two)[turn % 2].kill()
            _requests(first, second, before + 18, run)
            run.kill()
            run.wait()
        ended = client(first, file, *_also(second), timeout_s=200)
        assert ended.code == 0, ended.text
    check_samples(reachable.bucket, f"{prefix}/p", ids_of(rows))


def _requests(first: FakeServer, second: FakeServer, count: int, run: subprocess.Popen[str]) -> None:
    """Wait until the servers have got so many, or the client has ended."""
    wait_for(lambda: len(first.requests) + len(second.requests) >= count or run.poll() is not None, timeout_s=100)


@pytest.mark.slow
def test_errors_lost_answers_and_an_outage_lose_and_double_nothing(
    reachable: MotoServer, proxy: FaultProxy, prefix: str, tmp_path: Path
) -> None:
    rows = rows_of(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    url = f"s3://{reachable.bucket.name}/{prefix}"
    with (
        movers(reachable, tmp_path, url, proxy.port) as (one, two),
        serving(one.scratch, act=lambda *_: Act(delay_s=0.05)) as first,
        serving(two.scratch, act=lambda *_: Act(delay_s=0.05)) as second,
    ):
        options = ("--concurrency", "3", "--part-timeout", "60", "--mover-timeout", "120", "--server-timeout", "60")
        run = start(first, file, *_also(second), *options, log=tmp_path / "client.log")
        _requests(first, second, 6, run)
        proxy.errors = proxy.lost = 0.1
        _requests(first, second, 16, run)
        proxy.down = True
        sent = len(first.requests) + len(second.requests)
        time.sleep(OUTAGE_S)
        proxy.down = False
        assert len(first.requests) + len(second.requests) <= sent + 12, "nothing is sent whose intent is not stored"
        assert run.wait(240) in (0, 1), (tmp_path / "client.log").read_text()
        proxy.errors = proxy.lost = 0.0
        ended = client(first, file, *_also(second), *options, timeout_s=200)
        assert ended.code == 0, ended.text
    assert proxy.spoiled
    assert "Traceback" not in (tmp_path / "client.log").read_text()
    check_samples(reachable.bucket, f"{prefix}/p", ids_of(rows))


def test_a_store_that_is_away_at_the_start_is_said_in_a_line(
    reachable: MotoServer, proxy: FaultProxy, prefix: str, tmp_path: Path
) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(2))
    url = f"s3://{reachable.bucket.name}/{prefix}"
    with movers(reachable, tmp_path, url, proxy.port) as (one, _), serving(one.scratch) as server:
        proxy.down = True
        ended = client(server, file)
        proxy.down = False
        assert ended.code == 5, ended.text
        assert f"{url}" in ended.text.splitlines()[-1]
        assert client(server, file).code == 0
    check_samples(reachable.bucket, f"{prefix}/p", ids_of(rows_of(2)))
