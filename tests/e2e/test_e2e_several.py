"""Two real servers, each with a scratch and a mover of its own, one dataset. First a client for each, on leased rows,
of which one is killed; then one client for both, and one of the servers is killed for good."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chain import Server, client_argv, launch_server, running_mover, start_client, wait_until
from checker import Reference, check_dataset
from hs_client.leases.protocol import Ended
from lease_holder import holding
from prompt_files import mixed_rows, write_rows
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = pytest.mark.sglang

BOUNDARIES = (1, 4, 7)
SAMPLES = 150


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Started at the same time, since each waits more than it works."""
    with contextlib.ExitStack() as stack:
        folders = [tmp_path_factory.mktemp(name) for name in ("one", "two")]
        scratches = [
            stack.enter_context(small_tmpfs(folder / "scratch", options="size=256m,mode=0700")) for folder in folders
        ]
        model = tiny_model("tiny-llama")

        def launch(scratch: Path, folder: Path) -> Server:
            options, sglang = ["--boundaries", "1,4,7"], ["--chunked-prefill-size", "16"]
            server, _ = launch_server(model, scratch, folder, options=options, sglang=sglang)
            stack.callback(server.stop)
            return server

        with ThreadPoolExecutor() as pool:
            servers = list(pool.map(launch, scratches, folders))
        yield servers


def test_leased_rows_of_a_killed_client_go_to_the_other(
    pair: list[Server], references: Callable[..., Reference], destination: Path, tmp_path: Path
) -> None:
    reference = references("tiny-llama", BOUNDARIES)
    rows = [{"id": row["id"], "input_ids": list(reference.ids(row))} for row in mixed_rows(SAMPLES, seed=8)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    before = [server.answered() for server in pair]
    with (
        running_mover(pair[0].scratch, destination, tmp_path / "one"),
        running_mover(pair[1].scratch, destination, tmp_path / "two"),
        holding(tmp_path) as holder,
    ):
        stays, dies = (
            holder.start(name, client_argv(prompts, server, "--concurrency", "4"))
            for name, server in zip(("stays", "dies"), pair, strict=True)
        )
        holder.wait_until(lambda: stays.of(Ended) and len(dies.of(Ended)) >= 2, timeout_s=120)
        dies.process.kill()
        assert holder.wait(240) == [0, -signal.SIGKILL], stays.text
        assert holder.holder.finished
        wait_until(lambda: not pair[1].parts(), timeout_s=30, what="the parts of the killed client to be moved")
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
    totals = holder.holder.totals
    assert totals.done + totals.elsewhere == SAMPLES
    assert totals.done >= SAMPLES - 8
    # Nothing was asked for again but what the killed client had in flight.
    assert sum(server.answered() for server in pair) - sum(before) <= SAMPLES + 8


def test_one_of_two_servers_is_killed_for_good(
    pair: list[Server], references: Callable[..., Reference], destination: Path, tmp_path: Path
) -> None:
    reference = references("tiny-llama", BOUNDARIES)
    rows = [{"id": row["id"], "input_ids": list(reference.ids(row))} for row in mixed_rows(SAMPLES, seed=9)]
    prompts, log = write_rows(tmp_path / "prompts.jsonl", rows), tmp_path / "client.log"
    stays, dies = pair
    before = [server.answered() for server in pair]
    with (
        running_mover(stays.scratch, destination, tmp_path / "one"),
        running_mover(dies.scratch, destination, tmp_path / "two"),
    ):
        also = ("--server", f"{dies.url}={dies.scratch}")
        client = start_client(prompts, stays, log, *also, "--concurrency", "4")
        wait_until(
            lambda: client.poll() is not None or dies.answered() >= before[1] + 10,
            timeout_s=120,
            what="ten answers of the second server",
            every_s=0.02,
        )
        dies.kill()
        assert client.wait(180) == 0, log.read_text()
        told = log.read_text()
        # A record that was whole when its server died is adopted.
        assert re.search(rf"{SAMPLES} done( \(\d+ adopted\))?, 0 failed, 0 rejected", told), told
        wait_until(lambda: not dies.parts(), timeout_s=30, what="its parts to be moved")
    check_dataset(destination / "prompts", prompts, reference, max_abs=1e-5).assert_ok(rows=SAMPLES)
    assert stays.parts() == []
    # Both took part, the one that stayed had the rest.
    assert dies.answered() >= before[1] + 10
    assert stays.answered() - before[0] >= SAMPLES - (dies.answered() - before[1])
    manifests = list((destination / "prompts" / "manifest").iterdir())
    assert len(manifests) == 2
    assert all(path.stat().st_size for path in manifests)
