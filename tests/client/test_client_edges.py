"""What happens around a run: rows that change between runs, a mover that is replaced, storage that gives way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import MoverProcess, running_mover, wait_until
from client_runs import Ledgers, check_records, client, prompts, start
from fake_server import Act, serving
from hs_formats.hashing import row_content
from hs_formats.ledger import Done, Rejected


@pytest.fixture
def mover(tmp_path: Path) -> Iterator[MoverProcess]:
    (tmp_path / "scratch").mkdir(mode=0o700)
    with running_mover(tmp_path / "scratch", tmp_path / "dst", tmp_path) as running:
        yield running


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
        wait_until(lambda: list((mover.dst / "p" / "data").rglob("*.zst"))[1:], timeout_s=30, what="two stored parts")
        killed.kill()
        killed.wait()
    prompts(file, [{"id": "a", "input_ids": [1, 2]}, {"id": "b", "input_ids": [30, 40]}])
    with serving(mover.scratch) as server:
        ended = client(server, file)
        assert ended.code == 0
        assert "2 done (1 adopted)" in ended.text
        assert [ids for _, ids in server.requests] == [[30, 40]]
    check_records(mover.dst / "p", {"a": [1, 2], "b": [30, 40]})
