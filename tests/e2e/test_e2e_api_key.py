"""A real server with an API key, killed at row 30 and back after 20 seconds: two starts, some two minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chain import Server, launch_server, run_client, running_mover, start_client, wait_until
from checker import Reference, check_dataset
from prompt_files import mixed_rows, write_rows
from small_tmpfs import small_tmpfs
from tiny_models import tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(900)]

SAMPLES = 400
KEY = "open-sesame"


def test_a_server_with_a_key_that_is_killed_and_comes_back(
    references: Callable[..., Reference], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = references("tiny-llama", (1, 4, 7))
    rows = [{"id": row["id"], "input_ids": list(reference.ids(row))} for row in mixed_rows(SAMPLES, seed=6)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    log = tmp_path / "client.log"

    def start(scratch: Path, port: int | None = None) -> Server:
        options, sglang = ["--boundaries", "1,4,7"], ["--chunked-prefill-size", "16", "--api-key", KEY]
        return launch_server(tiny_model("tiny-llama"), scratch, tmp_path, options=options, sglang=sglang, port=port)[0]

    with small_tmpfs(tmp_path / "scratch", options="size=128m,mode=0700") as scratch:
        server = start(scratch)
        try:
            with running_mover(scratch, tmp_path / "dst", tmp_path):
                for wrong in ("", "sesame"):
                    monkeypatch.setenv("HS_API_KEY", wrong)
                    denied = run_client(prompts, server)
                    assert denied.returncode == 3, denied.stderr
                    assert "wants another API key (HTTP 401: Unauthorized)" in denied.stderr
                monkeypatch.setenv("HS_API_KEY", KEY)
                client = start_client(prompts, server, log, "--concurrency", "4", "--server-timeout", "200")
                before = server.answered()
                wait_until(lambda: server.answered() >= before + 30, timeout_s=120, what="thirty rows", every_s=0.02)
                assert client.poll() is None, log.read_text()
                server.kill()
                time.sleep(20)
                server = start(scratch, server.port)
                assert client.wait(timeout=240) == 0, log.read_text()
                assert "waiting for the server" in log.read_text()
                found = check_dataset(tmp_path / "dst" / "prompts", prompts, reference, max_abs=1e-5)
                found.assert_ok(rows=SAMPLES)
        finally:
            server.stop()
