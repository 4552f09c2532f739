"""A whole run inside the test process, where a blocking call in the event loop is an error."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from chain import running_mover
from client_runs import check_records, prompts
from fake_server import Act, Said, fake_answer, serving
from hs_client.generate.options import GenerateOptions
from hs_client.meanwhile import Meanwhile
from hs_client.run_command import run_command
from hs_client.settings import Endpoint, RunSettings
from hs_formats.control import ControlFolder
from hs_formats.jsonl import AppendLog
from hs_formats.responses import iter_facts


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


def test_ctrl_c_waits_until_what_was_answered_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    file = prompts(tmp_path / "p.jsonl", [{"id": f"s{i}", "input_ids": [1 + i, 2, 3]} for i in range(40)])
    interrupted = threading.Event()
    sync = AppendLog.sync

    def slow(log: AppendLog) -> None:
        if log.path.parent.name == "responses":
            interrupted.wait(30)  # so that answers come while others are written
            time.sleep(0.5)
        sync(log)

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        if number == 6:
            os.kill(os.getpid(), signal.SIGINT)
            interrupted.set()
        return fake_answer(ids, sampling)

    monkeypatch.setattr(AppendLog, "sync", slow)
    with serving(scratch, say=say) as server, running_mover(scratch, tmp_path / "dst", tmp_path):
        generate = GenerateOptions(concurrency=8)
        settings = RunSettings(files=[file], servers=[Endpoint(server.url, scratch)], generate=generate)
        assert run_command(settings) == 130, capsys.readouterr().err
    (answers,) = (tmp_path / "dst" / "p" / "responses").iterdir()
    assert len(list(iter_facts(answers))) == len(server.asked)


def test_the_heartbeat_does_not_wait_for_what_other_clients_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    file = prompts(tmp_path / "p.jsonl", [{"id": "s", "input_ids": [1, 2, 3]}])
    looked = threading.Event()
    control = ControlFolder(scratch)
    beats: set[float] = set()

    def slow(meanwhile: Meanwhile) -> None:
        if looked.is_set():
            return
        end_s = time.monotonic() + 30
        while len(beats) < 3 and time.monotonic() < end_s:
            beats.update(client.heartbeat_s for client in control.read_clients())
            time.sleep(0.05)
        looked.set()

    def act(number: int, rid: str, ids: list[int]) -> Act:
        looked.wait(60)
        return Act()

    monkeypatch.setattr(Meanwhile, "look", slow)
    with serving(scratch, act=act) as server, running_mover(scratch, tmp_path / "dst", tmp_path):
        settings = RunSettings(files=[file], servers=[Endpoint(server.url, scratch)], request_timeout_s=90)
        assert run_command(settings) == 0, capsys.readouterr().err
    assert len(beats) >= 3
