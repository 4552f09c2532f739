"""A whole run inside the test process, where a blocking call in the event loop is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain import running_mover
from client_runs import check_records, prompts
from fake_server import Act, serving
from hs_client.run_command import run_command
from hs_client.settings import Endpoint, RunSettings


def test_no_file_or_lock_call_blocks_the_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scratch = tmp_path / "scratch"
    rows = [{"id": f"s{i}", "input_ids": [1 + i, 2, 3]} for i in range(40)]
    file = prompts(tmp_path / "p.jsonl", rows)

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(status=503, body={}) if number == 7 else Act(part_delay_s=0.2 * (number % 2), parts_first=False)

    with serving(scratch, act=act) as server, running_mover(scratch, tmp_path / "dst", tmp_path):
        endpoint = Endpoint(server.url, scratch)
        settings = RunSettings(files=[file], servers=[endpoint], concurrency=8, progress_interval_s=1)
        assert run_command(settings) == 0, capsys.readouterr().err
    assert "40 done" in capsys.readouterr().err
    check_records(tmp_path / "dst" / "p", {str(row["id"]): row["input_ids"] for row in rows})  # type: ignore[misc]
