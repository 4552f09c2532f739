"""What a run leaves for people and programs: failed rows, summary, the command to go on with, status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from chain import MoverProcess, command, wait_until
from client_runs import Ledgers, argv, check_records, client, ids_of, prompts, rows_of, start
from fake_server import Act, serving
from hs_formats.ledger import Intent
from hs_formats.reader import HiddenStateDataset

_HOLDER = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def status(*arguments: object) -> str:
    done = subprocess.run(
        [command("hs-client"), "status", *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_failed_rows_are_valid_input_again(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(30, longest=30)
    lines = [json.dumps(row, indent=None, separators=(" ,", " :  ")) for row in rows]
    lines[4:4] = ['{"id": "bad"}', '{"input_ids": [NaN]}']
    file = tmp_path / "p.jsonl"
    file.write_text("\r\n".join(lines))
    refused = {3, 17, 29}

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(status=400, body={"error": {"message": "no"}}) if len(ids) - 1 in refused else Act()

    told = tmp_path / "summary.json"
    with serving(mover.scratch, act=act) as server:
        ended = client(server, file, "--summary-json", str(told))
        assert ended.code == 1, ended.text
        assert "failed           3 (refused), first " in ended.text
        summary = json.loads(told.read_text())
        assert summary["samples"] == {
            "done": 27,
            "adopted": 0,
            "failed": 3,
            "rejected": 2,
            "done_earlier": 0,
            "identical": 0,
            "done_elsewhere": 0,
            "conflicts": 0,
            "pending": 0,
        }
        assert (summary["exit_code"], summary["error"], summary["servers"]) == (1, "", [server.url])
        failed = Path(summary["failed_rows"])
        assert failed.parent == mover.dst / "p" / "failed"
        assert f"3 rows are in {failed}" in ended.text
        assert failed.read_text().splitlines() == [
            json.dumps(rows[i], separators=(" ,", " :  ")) for i in sorted(refused)
        ]
    with serving(mover.scratch) as server:
        ended = client(server, failed, "--dataset", "p")
        assert ended.code == 0, ended.text
        assert len(server.requests) == 3
        assert "3 rejected" not in client(server, file).text
        assert len(server.requests) == 3, "the rows are the same samples as in the first file"
    check_records(mover.dst / "p", ids_of(rows))


def test_rejected_rows_stay_rejected_until_one_asks(mover: MoverProcess, tmp_path: Path) -> None:
    """A row that was too long for the vocabulary of one server may be right for another one of the same dataset."""
    file = prompts(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [5] * 70}])
    with serving(mover.scratch, context_length=64) as server:
        assert client(server, file).code == 1
        again = client(server, file)
        assert again.code == 1
        assert "nothing to send" in again.text
        asked = client(server, file, "--retry-rejected")
        assert asked.code == 1
        assert "1 done, 1 to send" in asked.text
        assert "too long: 70 tokens" in asked.text
        assert len(server.requests) == 1


def test_the_way_on_is_printed_as_a_command_that_works(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(30, longest=30)
    file = prompts(tmp_path / "a file's name.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as server:
        process = start(
            server, file, "--dataset", "p", "--concurrency", "2", "--server-timeout", "2", log=tmp_path / "log"
        )
        wait_until(lambda: len(server.requests) > 8, timeout_s=30, what="eight requests")
    assert process.wait(30) == 4
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("to go on")]
    with serving(mover.scratch, port=server.port):
        environment = {**os.environ, "PATH": f"{Path(command('hs-client')).parent}:{os.environ['PATH']}"}
        shell = ["bash", "-c", line.removeprefix("to go on").strip()]
        done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_records(mover.dst / "p", ids_of(rows))


def test_status_of_a_run_and_of_its_dataset(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(40, longest=30)
    dataset = mover.dst / "p"
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.25)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "2", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="twelve requests")
        now = status("--scratch", mover.scratch)
        assert f"pid {process.pid}, alive, dataset p" in now
        assert "/40 samples" in now
        assert f"mover      pid {mover.process.pid}, moving, to {mover.dst}" in now
        assert " in, " in now or "/s, out " in now
        so_far = status(dataset, "--scratch", mover.scratch)
        assert f"pid {process.pid}, alive" in so_far
        assert "sent and not settled" in so_far
        assert process.wait(60) == 0
    assert "samples    40 done, 0 failed, 0 rejected, 0 sent and not settled" in status(
        dataset, "--scratch", mover.scratch
    )
    assert "none works on it" in status(dataset, "--scratch", mover.scratch)
    mover.kill()
    wait_until(
        lambda: "pid" in (text := status("--scratch", mover.scratch)) and "not alive" in text,
        timeout_s=15,
        what="a mover that is called dead",
    )
    text = status("--scratch", mover.scratch)
    assert "not alive, its last state was moving; last heard of " in text
    assert "used now, the limit was" in text
    assert "nothing is moved" in text
    assert "/s, out" not in text, "rates of a dead mover are no rates"


def test_a_stopped_client_that_keeps_the_lock_is_named_and_waited_for_no_longer_than_told(
    mover: MoverProcess, tmp_path: Path
) -> None:
    rows = rows_of(10, longest=30)
    file = prompts(tmp_path / "p.jsonl", rows)
    lock = mover.scratch / ".hs" / "credit.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HOLDER,
            str(lock),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        with serving(mover.scratch) as server:
            assert holder.stdout is not None
            holder.stdout.read(4)
            holder.send_signal(signal.SIGSTOP)
            ended = client(server, file, "--mover-timeout", "4")
            assert ended.code == 5, ended.text
            assert (
                f"waiting for the lock that clients share, which process {holder.pid} holds: is it stopped?"
                in ended.text
            )
            assert "10 samples are pending" in ended.text
            holder.kill()
            holder.wait()
            assert client(server, file).code == 0
    finally:
        holder.kill()
        holder.communicate()
    check_records(mover.dst / "p", ids_of(rows))


def test_a_second_client_without_a_shard_of_its_own_is_warned(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(20, longest=30)
    file = prompts(tmp_path / "p.jsonl", rows)
    held = threading.Event()

    def act(number: int, rid: str, ids: list[int]) -> Act:
        if number == 0:
            held.wait(60)
        return Act()

    with serving(mover.scratch, act=act) as server:
        first = start(server, file, "--shard", "0/2", "--concurrency", "1", log=tmp_path / "log")
        wait_until(lambda: server.requests, timeout_s=30, what="a request")
        apart = client(server, file, "--shard", "1/2")
        assert "warning" not in apart.text
        both = client(server, file)
        assert f"warning: process {first.pid} (run " in both.text
        assert "shard 0/2) works on this dataset too" in both.text
        held.set()
        assert first.wait(60) == 0
    assert sorted(HiddenStateDataset(mover.dst / "p").sample_ids) == sorted(ids_of(rows))


def test_plain_lines_come_no_oftener_than_told(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(30, longest=30)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as server:
        line = argv(server, [prompts(tmp_path / "p.jsonl", rows)], "--concurrency", "2", "--progress-interval", "1")
        done = subprocess.run(line, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    shown = [text for text in done.stderr.splitlines() if "/30 samples" in text]
    assert 1 <= len(shown) <= 8
    assert "\r" not in done.stderr
    assert any("limited by the server" in text for text in shown), done.stderr
    assert any("answers p50 0.2" in text for text in shown), done.stderr
    assert "samples    30 done" in done.stderr


def test_attempts_of_one_sample_have_pauses_and_rids_of_their_own(mover: MoverProcess, tmp_path: Path) -> None:
    with serving(mover.scratch, act=lambda i, rid, t: Act(cached_tokens=1 if i < 2 else 0)) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows_of(1, longest=30)))
    assert ended.code == 0, ended.text
    assert len(set(server.rids)) == 3
    assert len(Ledgers.of(mover.dst / "p").kinds(Intent)) == 3
    check_records(mover.dst / "p", ids_of(rows_of(1, longest=30)))
