"""The commands as the README has them, without an option that a default could spare: port 8000, /dev/shm/sglang_hs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from chain import ServerFactory, command, run_client, running_mover, wait_until
from checker import Reference, check_dataset
from hs_formats.control import ControlFolder, now_s
from prompt_files import mixed_rows, write_rows
from tiny_models import tiny_model

pytestmark = pytest.mark.sglang

SCRATCH = Path("/dev/shm/sglang_hs")
DEFAULT_BOUNDARIES = (2, 4, 5)  # 2, L//2 and L-3 of 8 layers


def in_use() -> str:
    """Who else uses what the defaults name; empty when nobody does."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8000)) == 0:
            return "somebody listens on port 8000"
    if SCRATCH.exists():
        control = ControlFolder(SCRATCH)
        mover = control.read_mover()
        if control.live_markers() or (mover is not None and mover.alive(now_s())):
            return f"a server or mover works on {SCRATCH}"
        if [name for name in os.listdir(SCRATCH) if name != ".hs"]:
            return f"{SCRATCH} holds files"
    return ""


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The test's own without anything that would stand in for an option."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "HS_", "NCCL_"))}
    return {**found, "HS_STATE_DIR": str(tmp_path / "state")}


@pytest.fixture
def free_defaults() -> Iterator[None]:
    trouble = in_use()
    if trouble:
        pytest.skip(f"THE DEFAULTS ARE NOT TESTED: {trouble}")
    new = not SCRATCH.exists()
    yield
    if new:
        shutil.rmtree(SCRATCH, ignore_errors=True)


def test_the_commands_work_without_options(
    free_defaults: None,
    environment: Mapping[str, str],
    servers: ServerFactory,
    references: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    rows = mixed_rows(12, seed=12)
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    data = tmp_path / "data"
    data.mkdir()

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command(argv[0]), *argv[1:]],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    launched = call(
        "hs-server", "launch", "--model-path", str(tiny_model("tiny-llama")), "--profile", "cpu", "--detach"
    )
    assert launched.returncode == 0, launched.stdout + launched.stderr
    try:
        assert launched.stdout.rstrip().splitlines()[-1] == "ready http://127.0.0.1:8000"
        mover = subprocess.Popen(
            [command("hs-mover"), "--src", str(SCRATCH), "--dst", str(data)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            state = ControlFolder(SCRATCH).read_mover
            wait_until(
                lambda: (found := state()) is not None and found.pid == mover.pid and found.alive(now_s()),
                timeout_s=30,
                what="the mover's heartbeat",
            )
            done = call("hs-client", "run", "prompts.jsonl")
        finally:
            mover.terminate()
            assert mover.wait(timeout=60) == 0
        assert done.returncode == 0, done.stdout + done.stderr
        left = [name for name in os.listdir(SCRATCH) if name != ".hs"]
    finally:
        stopped = call("hs-server", "stop")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert left == []
    assert call("hs-server", "status").returncode == 4
    dataset = data / "prompts"
    check_dataset(dataset, prompts, references("tiny-llama", DEFAULT_BOUNDARIES), max_abs=1e-5).assert_ok(
        rows=len(rows), orphans=False
    )

    # A server with other boundaries is refused for this dataset before anything is sent.
    other = servers("tiny-llama", "--boundaries", "1,4,7")
    more = write_rows(tmp_path / "more.jsonl", mixed_rows(15, seed=13))
    with running_mover(other.scratch, data, tmp_path):
        refused = run_client(more, other, "--dataset", "prompts")
    text = refused.stdout + refused.stderr
    assert refused.returncode == 3, text
    assert "boundaries: the dataset has [2, 4, 5], the server and tokenizer here have [1, 4, 7]" in text
    assert other.parts() == []
    assert len(list((dataset / "ledger").iterdir())) == 1
