"""Rows by their numbers: whatever ranges are asked for, in whatever order, they are those of one pass over all."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from hs_client.errors import BadPrompts
from hs_client.history import History
from hs_client.input_files import InputFile, open_inputs
from hs_client.lines import LineIndex, read_lines
from hs_client.plan import Fate, Judged, Plan, make_plan
from hs_client.row_reader import RowReader
from hs_client.rows import digest

LONG = 400
LINE = st.one_of(
    st.sampled_from(["", "  ", "no row", json.dumps({"input_ids": [1, 2]}), "x" * (LONG + 1)]),
    st.integers(0, 30).map(lambda i: json.dumps({"id": f"s{i}", "input_ids": [i, i]})),
    st.integers(0, 30).map(lambda i: json.dumps({"id": f"s{i}", "text": "ü" * i})),
)
FILE = st.tuples(st.sampled_from(["", ".gz", ".zst"]), st.lists(LINE, max_size=40), st.sampled_from(["\n", "\r\n"]))

ASKED = st.tuples(st.integers(0, 170), st.integers(0, 60))


def write(folder: Path, number: int, kind: str, lines: list[str], end: str) -> InputFile:
    data = end.join(lines).encode()
    if number % 2:
        data = b"\xef\xbb\xbf" + data + end.encode() * 3
    path = folder / f"{number}.jsonl{kind}"
    match kind:
        case ".gz":
            path.write_bytes(gzip.compress(data))
        case ".zst":
            path.write_bytes(zstandard.ZstdCompressor().compress(data))
        case _:
            path.write_bytes(data)
    return InputFile.of(path)


def plan_of(files: list[InputFile], *done: str) -> Plan:
    history = History()
    for sample in done:
        history.done.add(digest(sample))
    return make_plan(files, history, max_line_bytes=LONG, numbered=True)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(FILE, min_size=1, max_size=4), st.lists(st.tuples(st.integers(0, 170), st.integers(0, 60)), max_size=12)
)
def test_ranges_in_any_order_are_those_of_one_pass(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, list[str], str]],
    asked: list[tuple[int, int]],
) -> None:
    folder = tmp_path_factory.mktemp("f")
    with mock.patch("hs_client.lines._INDEX_LINES", 3):
        plan = plan_of([write(folder, number, *file) for number, file in enumerate(files)], "s3", "s4")
        reader = RowReader(plan)
        everything = list(plan.again())
        assert [judged.number for judged in everything] == sorted(judged.number for judged in everything)
        assert list(reader.between(0, plan.numbers)) == everything
        for start, rows in asked:
            stop = min(plan.numbers, start + rows)
            want = [judged for judged in everything if start <= judged.number < stop]
            assert list(reader.between(start, stop)) == want
            assert reader.to_read(start, stop) == len({judged.number for judged in want})
    fates = reader.fates(0, plan.numbers)
    assert fates == Counter({fate: count for fate, count in plan.counts.items() if count})
    # A row number is what it is said to be.
    offset = 0
    for (_, lines, _), file in zip(files, plan.files, strict=True):
        for judged in everything:
            name, _, line = judged.where.rpartition(":")
            if name == file.name:
                assert judged.number == offset + int(line) - 1
        offset += max((at + 1 for at, line in enumerate(lines) if line.strip()), default=0)
    assert plan.numbers == offset


@settings(deadline=None, max_examples=60)
@given(st.lists(FILE, min_size=1, max_size=3), st.integers(0, 100), st.integers(0, 100), st.integers(0, 9))
def test_a_piece_holds_so_many_rows_and_what_follows_unread(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, list[str], str]],
    start: int,
    rows: int,
    count: int,
) -> None:
    folder = tmp_path_factory.mktemp("f")
    plan = plan_of([write(folder, number, *file) for number, file in enumerate(files)])
    reader = RowReader(plan)
    stop = min(plan.numbers, start + rows)
    if start >= stop:
        return
    reached = reader.reach(start, stop, count)
    held = {judged.number for judged in plan.again() if start <= judged.number < stop}
    inside = {number for number in held if number < reached}
    assert start <= reached <= stop
    assert len(inside) == min(count, len(held))
    assert reached == stop or reached in held


def test_a_range_is_read_near_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [json.dumps({"id": f"s{i}", "input_ids": [i]}) for i in range(5_000)]
    plan = plan_of([write(tmp_path, 0, "", rows, "\n")])
    opened: list[int] = []
    read: list[int] = []
    original = InputFile.open

    def spy(file: InputFile, start: int = 0) -> io.BytesIO:
        opened.append(start)
        with original(file, start) as content:
            data = content.read()
        read.append(len(data))
        return io.BytesIO(data)

    monkeypatch.setattr(InputFile, "open", spy)
    reader = RowReader(plan)

    def numbers(start: int, stop: int) -> list[int]:
        return [judged.number for judged in reader.between(start, stop)]

    assert numbers(10, 20) == list(range(10, 20))
    assert numbers(20, 40) == list(range(20, 40))
    assert opened == [0]  # it is read on
    assert numbers(4_990, 5_000) == list(range(4_990, 5_000))
    assert numbers(300, 310) == list(range(300, 310))
    assert len(opened) == 3
    whole = len("\n".join(rows))
    assert whole - 300 * 40 < opened[1] < whole
    assert 0 < opened[2] < 300 * 40


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, 0, "", [json.dumps({"id": f"s{i}", "input_ids": [i]}) for i in range(9)], "\n")
    reader = RowReader(plan_of([file]))
    assert len(list(reader.between(0, 4))) == 4
    file.path.write_text('{"id": "other", "input_ids": [1]}\n')
    with pytest.raises(BadPrompts, match="it changed while it was read"):
        list(reader.between(4, 9))


def test_files_with_the_same_rows_have_the_same_hash(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"s{i}", "input_ids": [i]}) for i in range(20)]

    def hashed(name: str, kind: str, rows: list[str]) -> tuple[int, str]:
        (tmp_path / name).mkdir()
        plan = plan_of(
            [write(tmp_path / name, 0, kind, rows[:9], "\n"), write(tmp_path / name, 2, kind, rows[9:], "\n")]
        )
        return plan.numbers, plan.inputs_hash

    first = hashed("a", "", lines)
    assert hashed("b", ".gz", lines) == first
    assert hashed("c", "", [*lines[:-1], lines[-1].replace("19", "18")]) != first
    assert hashed("d", "", [*lines[1::-1], *lines[2:]]) != first
    assert hashed("e", "", ["", *lines]) != first


def test_lines_are_found_from_the_index(tmp_path: Path) -> None:
    file = write(tmp_path, 1, "", ["", "a", "x" * 3_000_000, "", "b", "c"], "\r\n")
    with mock.patch("hs_client.lines._INDEX_LINES", 1):
        index = LineIndex()
        lines = list(read_lines(file, max_bytes=1000, index=index))
    assert [(line.number, line.data) for line in lines] == [(2, b"a"), (3, None), (5, b"b"), (6, b"c")]
    for line in range(8):
        start = index.before(line)
        assert start[0] <= line
        want = [each for each in lines if each.number > start[0]]
        assert list(read_lines(file, max_bytes=1000, start=start)) == want
    assert LineIndex().before(7) == (0, 0)


def test_only_files_that_are_not_compressed_are_entered(tmp_path: Path) -> None:
    kinds = ["", ".gz", ".zst"]
    files = [write(tmp_path, number, kind, ['{"input_ids": [1]}'], "\n") for number, kind in enumerate(kinds)]
    assert [file.may_be_entered() for file in files] == [True, False, False]
    assert [index is not None for index in plan_of(open_inputs([file.path for file in files])).indexes] == [
        True,
        False,
        False,
    ]
    plain = make_plan(files, History())
    assert plain.indexes == []
    judged: list[Judged] = list(plain.again())
    assert [(each.number, each.fate) for each in judged] == [(0, Fate.SEND)]
