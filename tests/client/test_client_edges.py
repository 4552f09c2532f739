"""What happens around a run: rows that change between runs, a mover that is replaced, storage that gives way."""

from __future__ import annotations

import fcntl
import gzip
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from chain import MoverProcess, running_mover, wait_until
from client_runs import Ledgers, argv, check_records, client, ids_of, prompts, rows_of, start
from fake_server import Act, serving
from hs_client.claim import hold_claim, live_runs
from hs_client.history import read_history
from hs_client.rows import digest
from hs_client.status_command import dataset_lines
from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import PreflightError
from hs_formats.hashing import content_number, row_content
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Intent, Rejected
from part_factory import random_record, write_dataset


def test_content_is_what_decides_about_tokens_and_mask() -> None:
    row = {"id": "a", "text": "hello", "source": "web"}
    same: list[dict[str, Any]] = [
        {"text": "hello"},
        {**row, "id": "b"},
        {"source": "book", "text": "hello", "loss_mask": None},
    ]
    other: list[dict[str, Any]] = [
        {"text": "hello "},
        {"messages": "hello"},
        {**row, "tools": []},
        {**row, "chat_template_kwargs": {}},
    ]
    assert {row_content(each) for each in same} == {row_content(row)}
    assert len({row_content(each) for each in [row, *other]}) == 1 + len(other)


@settings(deadline=None)
@given(
    content=st.one_of(st.text(max_size=40), st.sampled_from(["f" * 16, "f" * 17, "-1", "0x1", "1_0", "zz", "F" * 16]))
)
def test_a_ledger_whose_contents_were_damaged_can_be_read(
    tmp_path_factory: pytest.TempPathFactory, content: str
) -> None:
    paths = DatasetPaths(tmp_path_factory.mktemp("set"))
    paths.create()
    rids = [f"hs-00000001-{row:08d}-00" for row in range(2)]
    with AppendLog(paths.ledger_file("00000001")) as log:
        for rid in rids:
            log.append([Intent(sample_id=rid, rid=rid, n=1, ids_xxh3="", mask=[], content=content)])
        log.append([Done(sample_id=rids[0], rid=rids[0], content=content)])
        log.append([Rejected(sample_id="r", row="f:1", reason="no", content=content)])
    found = read_history(paths)
    known = content_number(content)
    assert known == (int(content, 16) if re.fullmatch("[0-9a-f]{16}", content, re.ASCII) else 0)
    assert found.done.get(digest(rids[0])) == known
    assert found.content.get(digest("r"), 0) == known
    found.drop_changed(digest(rids[1]), 5)
    assert (digest(rids[1]) in found.open) == (known in (0, 5)), "what nobody knows is no change"


def test_a_row_that_changed_under_its_id_is_no_longer_done_nor_rejected(mover: MoverProcess, tmp_path: Path) -> None:
    first = [
        {"id": "kept", "input_ids": [1, 2, 3], "note": "a"},
        {"id": "edited", "input_ids": [4, 5, 6]},
        {"id": "remasked", "input_ids": [7, 8], "loss_mask": [1, 1]},
        {"id": "mended", "input_ids": list(range(1, 60))},
        {"id": "long", "input_ids": list(range(1, 61))},
    ]
    second = [
        {"id": "kept", "input_ids": [1, 2, 3], "note": "b"},
        {"id": "edited", "input_ids": [6, 5, 4]},
        {"id": "remasked", "input_ids": [7, 8], "loss_mask": [0, 1]},
        {"id": "mended", "input_ids": [9, 9]},
        first[4],
    ]
    file = prompts(tmp_path / "p.jsonl", first)
    with serving(mover.scratch, context_length=50) as server:
        ended = client(server, file)
        assert "3 done, 0 failed, 2 rejected" in ended.text
        prompts(file, second)
        ended = client(server, file)
        assert ended.code == 1
        assert "5: 1 done, 1 to send, 3 rejected" in ended.text
        assert "1 done, 0 failed, 3 rejected, 1 done earlier" in ended.text
        for line, name in ((2, "edited"), (3, "remasked")):
            assert f"p.jsonl:{line}: rejected: id '{name}' is done already, with other content" in ended.text
        assert len(server.requests) == 4
    with serving(mover.scratch, context_length=50) as server:
        ended = client(server, file)
        assert "nothing to send" in ended.text
        assert "0 done, 0 failed, 3 rejected, 2 done earlier" in ended.text
    expected = {"kept": [1, 2, 3], "edited": [4, 5, 6], "remasked": [7, 8], "mended": [9, 9]}
    check_records(mover.dst / "p", expected)
    ledgers = Ledgers.of(mover.dst / "p")
    assert {line.content for line in ledgers.kinds(Done)} == {row_content(row) for row in [*first[:3], second[3]]}
    assert {line.context_tokens for line in ledgers.kinds(Rejected) if line.sample_id} == {50}


def test_a_finished_run_repeated_with_other_settings_is_refused(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1, 2, 3]}])
    with serving(mover.scratch) as server:
        assert client(server, file).code == 0
        assert client(server, file).code == 0
        other = client(server, file, "--train-on", "last")
        assert (other.code, len(server.requests)) == (3, 1), other.text
        assert "train_on: the dataset has all, the server and tokenizer here have last" in other.text
        (tmp_path / "empty").write_bytes(b"\xef\xbb\xbf\n \t\r\n")
        nothing = client(server, tmp_path / "empty")
        assert (nothing.code, f"error: no rows in {tmp_path / 'empty'}: " in nothing.text) == (2, True), nothing.text
        beside = client(server, file, "--dataset", "p", more=[tmp_path / "empty"])
        assert (beside.code, f"warning    {tmp_path / 'empty'} holds no row" in beside.text) == (0, True), beside.text
    # Nor is it when the server is gone by then.
    assert client(server, file).code == 0
    other = client(server, file, "--chat-template-kwargs", '{"enable_thinking": false}')
    assert other.code == 3
    assert "template_arguments: the dataset has {}" in other.text


def test_a_ledger_removed_under_a_run_is_told_and_its_rows_are_sent_again(mover: MoverProcess, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": f"s{at}", "input_ids": [1, 2, at]} for at in range(60)]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=0.05)) as server:
        process = start(server, file, "--concurrency", "4", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 20, timeout_s=30, what="twenty requests")
        next((mover.dst / "p" / "ledger").glob("*.jsonl")).unlink()
        assert process.wait(60) == 5, (tmp_path / "log").read_text()
        assert "it was removed or cut while the run went on" in (tmp_path / "log").read_text()
        ended = client(server, file)
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", {row["id"]: row["input_ids"] for row in rows})


@pytest.mark.parametrize("full", [True, False])
def test_a_run_goes_on_where_nobody_reads_what_it_says(mover: MoverProcess, tmp_path: Path, *, full: bool) -> None:
    rows = rows_of(8)
    file = prompts(tmp_path / "p.jsonl", rows)
    reader, writer = os.pipe()
    os.close(reader)
    with serving(mover.scratch) as server, os.fdopen(writer, "wb") as pipe, Path("/dev/full").open("wb") as disk:
        output = disk if full else pipe
        code = subprocess.run(
            argv(server, [file]), stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        ).returncode
    assert code == 0
    check_records(tmp_path / "dst" / "p", ids_of(rows))


def test_a_ledger_that_cannot_be_read_is_one_line_for_status(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(1, 3)])
    paths.ledger_file("0000beef").mkdir()
    with pytest.raises(PreflightError, match="Is a directory"):
        list(dataset_lines(paths.root, tmp_path))


def test_a_row_that_was_too_long_is_sent_to_a_server_with_a_longer_context(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", [{"id": "long", "input_ids": list(range(1, 60))}])
    for context, counts in ((50, "0 done, 0 failed, 1 rejected"), (40, "1 rejected"), (60, "1 done, 0 failed, 0 rej")):
        with serving(mover.scratch, context_length=context) as server:
            assert counts in client(server, file).text
    check_records(mover.dst / "p", {"long": list(range(1, 60))})


def test_a_record_of_the_row_as_it_was_is_not_adopted(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [3, 4]}])
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=60)) as server:
        killed = start(server, file, log=tmp_path / "killed.log")
        wait_until(lambda: list((mover.dst / "p" / "data").rglob("*.pt.*"))[1:], timeout_s=30, what="two stored parts")
        killed.kill()
        killed.wait()
    prompts(file, [{"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [30, 40]}])
    with serving(mover.scratch) as server:
        ended = client(server, file)
        assert ended.code == 0
        assert "2 done (1 adopted)" in ended.text
        assert [ids for _, ids in server.requests] == [[30, 40]]
    check_records(mover.dst / "p", {"a": [1, 2], "b": [30, 40]})


def test_adopted_records_are_no_part_of_the_limit(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(12, longest=30))
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=60)) as server:
        killed = start(server, file, "--concurrency", "5", log=tmp_path / "killed.log")
        wait_until(lambda: list((mover.dst / "p" / "data").rglob("*.pt.*"))[4:], timeout_s=30, what="five stored parts")
        killed.kill()
        killed.wait()
    with serving(mover.scratch) as server:
        ended = client(server, file, "--limit", "4")
    assert "9 done (5 adopted), 0 failed, 0 rejected, 0 done earlier, 3 pending" in ended.text


def test_rows_that_turn_out_unfit_are_not_pending_beside_those_that_the_limit_leaves(
    mover: MoverProcess, tmp_path: Path
) -> None:
    unfit = {"id": "v", "input_ids": list(range(1, 60))}  # longer than the server takes
    planned = {"id": "w", "input_ids": []}
    with serving(mover.scratch, context_length=50) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", [unfit, *rows_of(5, longest=30), planned]), "--limit", "2")
    assert "2 done, 0 failed, 2 rejected, 0 done earlier, 3 pending" in ended.text
    assert (ended.code, "p.jsonl:7: rejected: input_ids is empty" in ended.text) == (1, True), "also beyond the limit"


def test_a_mover_that_stores_elsewhere_holds_the_run_and_splits_no_dataset(tmp_path: Path) -> None:
    rows = rows_of(60, longest=30)
    file, scratch = prompts(tmp_path / "p.jsonl", rows), tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    log = tmp_path / "client.log"
    said = f"it stores to {tmp_path / 'other'} now, and this run's dataset lies in {tmp_path / 'dst'}"
    with serving(scratch, act=lambda number, rid, ids: Act(delay_s=0.2)) as server:
        with running_mover(scratch, tmp_path / "dst", tmp_path):
            run = start(server, file, "--concurrency", "4", "--mover-timeout", "120", log=log)
            wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="some requests")
        with running_mover(scratch, tmp_path / "other", tmp_path) as other:
            wait_until(lambda: said in log.read_text(), timeout_s=60, what="the reason")
        assert f"was begun with --dst {tmp_path / 'dst'}: its parts stay in scratch" in other.log.read_text()
        assert not list((tmp_path / "other").rglob("*.pt*"))
        with running_mover(scratch, tmp_path / "dst", tmp_path):
            assert run.wait(90) == 0, log.read_text()
    assert "60 done, 0 failed" in log.read_text()
    check_records(tmp_path / "dst" / "p", ids_of(rows))


def test_scratch_removed_under_a_run_is_one_line_and_5(mover: MoverProcess, tmp_path: Path) -> None:
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=0.2)) as server:
        run = start(
            server, prompts(tmp_path / "p.jsonl", rows_of(60, longest=30)), "--concurrency", "4", log=tmp_path / "c.log"
        )
        wait_until(lambda: len(server.requests) > 8, timeout_s=30, what="some requests")
        shutil.rmtree(mover.scratch, ignore_errors=True)
        assert run.wait(20) == 5
    text = (tmp_path / "c.log").read_text()
    assert "Traceback" not in text
    assert f"error: cannot use {mover.scratch}" in text


def test_a_ledger_that_cannot_be_written_is_no_lost_server(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(80, longest=30))
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=0.1)) as server:
        run = start(
            server, file, "--concurrency", "4", "--server-timeout", "2", "--mover-timeout", "6", log=tmp_path / "c.log"
        )
        wait_until(lambda: len(server.requests) > 8, timeout_s=30, what="some requests")
        (mover.dst / "p" / "ledger").rename(tmp_path / "away")
        assert run.wait(30) == 5
        assert "error: cannot write " in (tmp_path / "c.log").read_text()
        (tmp_path / "away").rename(mover.dst / "p" / "ledger")
        assert client(server, file).code == 0
    check_records(mover.dst / "p", ids_of(rows_of(80, longest=30)))


def test_a_file_whose_name_is_no_text(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / os.fsdecode(b"\xff.jsonl"), [*rows_of(2, longest=30), {"id": "s0", "text": "again"}])
    with serving(mover.scratch) as server:
        ended = client(server, file, "--dataset", "d")
    assert ended.code == 1
    assert "\\xff.jsonl:3: rejected: id 's0' is taken by" in ended.text
    check_records(mover.dst / "d", ids_of(rows_of(2, longest=30)))


@pytest.mark.parametrize(("limit", "code"), [("-Sn 160", 0), ("-n 160", 2)])
def test_open_files_are_allowed_as_far_as_they_may_be(
    mover: MoverProcess, tmp_path: Path, limit: str, code: int
) -> None:
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=0.5)) as server:
        words = argv(server, [prompts(tmp_path / "p.jsonl", rows_of(200, longest=30))], "--concurrency", "180")
        done = subprocess.run(
            ["bash", "-c", f'ulimit {limit}; exec "$@"', "-", *words], capture_output=True, text=True, check=False
        )
    assert done.returncode == code, done.stderr
    assert ("--concurrency 180 needs some 280 open files, and this shell allows 160" in done.stderr) == bool(code)


def test_a_claim_waits_for_somebody_who_looks(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path)
    control.create()
    control.client_record("0000abcd").close()
    looks = os.open(control.clients / "0000abcd.json", os.O_RDONLY)
    fcntl.flock(looks, fcntl.LOCK_SH)
    threading.Timer(0.2, os.close, (looks,)).start()
    claim = hold_claim(control, "0000abcd")
    assert live_runs(control) == {"0000abcd"}
    os.close(claim)
    assert live_runs(control) == set()


def test_a_dry_run_and_a_wrong_tokenizer_leave_no_dataset(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "hello"}, {"id": "b"}]
    file = prompts(tmp_path / "p.jsonl", rows)
    numbers = prompts(tmp_path / "n.jsonl", [{"input_ids": [1, 2]}, {"input_ids": []}])
    (tmp_path / "no-tokenizer").mkdir()
    with serving(tmp_path / "scratch") as server:
        wrong = client(server, file, "--tokenizer", str(tmp_path / "no-tokenizer"))
        dry = client(server, numbers, "--dry-run")
    assert wrong.code == 3
    assert "cannot load the tokenizer" in wrong.text
    assert dry.code == 1
    assert "dry run: nothing is sent" in dry.text
    assert "1 rejected, 0 done earlier, 1 pending" in dry.text
    assert "n.jsonl:2: rejected: input_ids is empty" in dry.text
    assert not list((tmp_path / "dst").glob("[a-z]*"))


def test_packed_files_and_a_pipe_are_read_and_an_archive_is_named_as_one(mover: MoverProcess, tmp_path: Path) -> None:
    packed = tmp_path / "p.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"id": "a", "input_ids": [1, 2]}\n'))
    archive = tmp_path / "p.zip"
    archive.write_bytes(b"PK\x03\x04")
    with serving(mover.scratch) as server:
        assert client(server, packed).code == 0
        refused = client(server, archive)
        assert refused.code == 2
        assert (
            refused.text
            == f"error: cannot read {archive}: it is a zip archive: unpack it first (see hs-client run --help)\n"
        )
        command = argv(server, [Path("-")], "--dataset", "p")
        rows = b'{"id": "a", "input_ids": [1, 2]}\n{"id": "b", "input_ids": [3]}\n'
        piped = subprocess.run(command, input=rows, capture_output=True, timeout=60)
        assert piped.returncode == 0, piped.stderr
        assert b"rows       2: 1 done, 1 to send" in piped.stderr
    check_records(mover.dst / "p", {"a": [1, 2], "b": [3]})
