"""Whole passes over a scratch folder, in this process: what is stored, what is quarantined, what is left alone."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.hashing import ids_xxh3, xxh3_hex
from hs_formats.names import PartName, temporary_name
from hs_formats.regular import open_regular
from hs_formats.stored import read_stored
from hs_mover import books, housekeeping, lane
from hs_mover.daemon import NotMoved
from movers import check_moved, lines_of, move_once, mover_thread, raw_lines, scratch_parts, wait_for
from parts import NONCE, drop_part, make_part, part_name, random_states, register

RUN = "00c0ffee"


def rid(row: int, attempt: int = 0, *, run: str = RUN) -> str:
    return f"hs-{run}-{row:08d}-{attempt:02d}"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    register(tmp_path / "scratch", RUN, "set")
    return tmp_path / "scratch"


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(autouse=True)
def soon_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "SETTLE_S", 0.05)
    monkeypatch.setattr(housekeeping, "STALE_S", 0.05)


@pytest.mark.parametrize("codec", ["default", "fast", "zstd", "none"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_parts_are_stored_byte_for_byte(src: Path, dst: Path, codec: str, dtype: str) -> None:
    parts: dict[str, bytes] = {}
    for row in range(4):
        for start, stop in ((0, 16), (16, 21)):
            path = drop_part(src, rid(row), start, stop, 21, dtype=dtype, seed=row * 100 + start)
            parts[path.name] = path.read_bytes()
    move_once(src, dst, codec=codec)
    assert scratch_parts(src) == []
    check_moved(dst / "set", parts)


def test_a_line_says_all_about_its_part(src: Path, dst: Path) -> None:
    states = random_states((5, 3, 8), "float32", seed=7)
    path = drop_part(src, rid(1), 3, 8, 9, states=states, ids=[5, 6, 7, 8, 9])
    data = path.read_bytes()
    move_once(src, dst)
    line = lines_of(dst / "set")[path.name]
    assert (line.status, line.codec, line.writers, line.expected_ranks) == ("stored", "default", "first", [0])
    assert line.xxh3 == xxh3_hex([data])
    assert line.rows_xxh3 == xxh3_hex([states.tobytes()])
    assert line.ids_xxh3 == ids_xxh3([5, 6, 7, 8, 9])
    assert line.path == f"data/{RUN}/000000/{path.stem}.pt.hsz"


def test_parts_larger_than_a_block_and_vectors_that_do_not_divide_it(src: Path, dst: Path) -> None:
    path = drop_part(src, rid(0), 0, 700, 700, hidden=1000, dtype="bfloat16", boundaries=(3,))
    parts = {path.name: path.read_bytes()}
    assert len(parts[path.name]) > 2 << 20
    move_once(src, dst)
    check_moved(dst / "set", parts)


def with_value(value: int, *, at: tuple[int, int, int]) -> np.ndarray:
    states = random_states((6, 3, 8), "float32", seed=3)
    states.view("<u4")[at] = value
    return states


def constant(at: tuple[int, int], value: float) -> np.ndarray:
    states = random_states((6, 3, 8), "float32", seed=3)
    states[at] = value
    return states


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        (with_value(0x7FC00000, at=(4, 1, 7)), "token 4, slot 1: NaN"),
        (with_value(0xFFC00001, at=(0, 0, 0)), "token 0, slot 0: NaN"),
        (with_value(0x7F800000, at=(5, 2, 3)), "token 5, slot 2: infinite"),
        (with_value(0xFF800000, at=(5, 2, 3)), "token 5, slot 2: infinite"),
        (constant((2, 1), 0.0), "token 2, slot 1: all zero"),
        (constant((2, 1), -0.0), "token 2, slot 1: all zero"),
        (constant((5, 2), 1.5), "token 5, slot 2: all channels equal"),
        (np.zeros((6, 3, 8), "<f4"), "token 0, slot 0: all zero"),
    ],
)
def test_bad_values_are_quarantined_with_token_and_slot(src: Path, dst: Path, states: np.ndarray, reason: str) -> None:
    good = drop_part(src, rid(1), 0, 6, 6)
    bad = drop_part(src, rid(2), 0, 6, 6, states=states)
    data = bad.read_bytes()
    move_once(src, dst)
    lines = lines_of(dst / "set")
    assert lines[good.name].status == "stored"
    line = lines[bad.name]
    assert (line.status, line.reason, line.path) == ("quarantined", reason, f"quarantine/{bad.name}")
    assert line.xxh3 == xxh3_hex([data])
    assert (dst / "set" / line.path).read_bytes() == data
    note = json.loads((dst / "set" / f"{line.path}.reason.json").read_bytes())
    assert (note["part"], note["reason"]) == (bad.name, reason)
    assert scratch_parts(src) == []
    assert not list(dst.rglob("*.tmp"))


def test_vectors_whose_first_channels_are_equal_are_not_dead(src: Path, dst: Path) -> None:
    states = random_states((6, 3, 8), "float32", seed=3)
    states[:, :, :6] = 0.0
    states[2, 1] = 1.5
    states[2, 1, 7] = 2.5
    path = drop_part(src, rid(1), 0, 6, 6, states=states)
    parts = {path.name: path.read_bytes()}
    move_once(src, dst)
    check_moved(dst / "set", parts)


WHOLE = make_part(rid(1), 0, 6, 6)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "zip"),
        (WHOLE[: len(WHOLE) // 2], "zip"),
        (WHOLE[:-1], "zip"),
        (WHOLE[: WHOLE.index(b"PK\x01\x02")], "zip"),
        (WHOLE + b"x", "zip"),
        (b"\0" * len(WHOLE), "zip"),
        (os.urandom(4096), "zip"),
        (make_part(rid(2), 0, 6, 6), "says it is"),
        (make_part(rid(1), 0, 5, 6), "says it is"),
        (make_part(rid(1), 0, 6, 6, ids=[1, 2, 3, -4, 5, 6]), "negative"),
    ],
)
@pytest.mark.parametrize("whole_bytes", [0, 256 << 10], ids=["as a large one", "in one call"])
def test_files_that_are_no_whole_part_are_quarantined(
    src: Path, dst: Path, data: bytes, word: str, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_mover.store._WHOLE_BYTES", whole_bytes)
    path = drop_part(src, rid(1), 0, 6, 6, data=data)
    move_once(src, dst)
    line = lines_of(dst / "set")[path.name]
    assert line.status == "quarantined"
    assert word in line.reason
    assert line.xxh3 == xxh3_hex([data])
    assert (dst / "set" / line.path).read_bytes() == data
    assert scratch_parts(src) == []


def test_a_part_that_does_not_fit_the_dataset_is_quarantined(src: Path, dst: Path) -> None:
    paths = DatasetPaths(dst / "set")
    paths.create()
    info = DatasetInfo(
        model="m", config_hash="0" * 16, num_layers=4, boundaries=[1, 3], dtype="float32", hidden_size=8,
        tokenizer="t", tokenizer_hash="h", template_hash="h",
    )  # fmt: skip
    paths.write_info(info)
    fits = drop_part(src, rid(1), 0, 4, 4, boundaries=(1, 3))
    differs = drop_part(src, rid(2), 0, 4, 4, boundaries=(1, 2))
    retrained = drop_part(src, rid(3), 0, 4, 4, boundaries=(1, 3), config_hash="f" * 16)
    move_once(src, dst)
    lines = lines_of(dst / "set")
    assert lines[fits.name].status == "stored"
    assert lines[differs.name].reason == "boundaries [1, 2] where the dataset has [1, 3]"
    assert lines[retrained.name].status == "quarantined"
    assert lines[retrained.name].reason == f"config_hash {'f' * 16} where the dataset has {'0' * 16}"


def test_a_dataset_that_begins_anew_is_compared_with_its_new_description(src: Path, dst: Path) -> None:
    def describe(boundaries: list[int]) -> None:
        paths = DatasetPaths(dst / "set")
        paths.create()
        paths.write_info(
            DatasetInfo(
                model="m", config_hash="0" * 16, num_layers=4, boundaries=boundaries, dtype="float32", hidden_size=8,
                tokenizer="t", tokenizer_hash="h", template_hash="h",
            )
        )  # fmt: skip

    describe([1, 2])
    with mover_thread(src, dst):
        old = drop_part(src, rid(1), 0, 4, 4, boundaries=(1, 2))
        wait_for(lambda: not old.exists())
        shutil.rmtree(dst / "set")
        describe([1, 3])
        new = drop_part(src, rid(2), 0, 4, 4, boundaries=(1, 3))
        wait_for(lambda: not new.exists())
    assert lines_of(dst / "set")[new.name].status == "stored"


# -- ranks


def drop_ranks(src: Path, row: int, seeds: list[int]) -> list[str]:
    ranks = list(range(len(seeds)))
    return [
        drop_part(src, rid(row), 0, 4, 4, rank=rank, writers="all", expected_ranks=ranks, seed=seed).name
        for rank, seed in zip(ranks, seeds, strict=True)
    ]


def test_equal_ranks_are_stored_once(src: Path, dst: Path) -> None:
    names = drop_ranks(src, 1, [5, 5, 5])
    move_once(src, dst)
    lines = lines_of(dst / "set")
    assert sorted(lines[name].status for name in names) == ["equal", "equal", "stored"]
    assert all(lines[name].path == "" for name in names if lines[name].status == "equal")
    assert len({lines[name].rows_xxh3 for name in names}) == 1
    assert len([path for path in (dst / "set" / "data").rglob("*") if path.is_file()]) == 1
    assert scratch_parts(src) == []


def test_ranks_that_differ_fail_the_record_by_name(src: Path, dst: Path) -> None:
    names = drop_ranks(src, 1, [5, 6, 5])
    same = drop_ranks(src, 2, [7, 7, 7])
    move_once(src, dst)
    lines = lines_of(dst / "set")
    statuses = sorted(lines[name].status for name in names)
    assert statuses in (["quarantined", "quarantined", "stored"], ["equal", "quarantined", "stored"])
    reasons = [lines[name].reason for name in names if lines[name].status == "quarantined"]
    assert all(reason.startswith("ranks disagree: r0") and "r01" in reason for reason in reasons)
    assert {lines[name].status for name in same} == {"stored", "equal"}


def test_ranks_are_compared_across_restarts(src: Path, dst: Path) -> None:
    fields: dict[str, Any] = {
        "writers": "all",
        "expected_ranks": [0, 1, 2],
        "states": random_states((4, 3, 8), "float32", seed=1),
    }
    other = {**fields, "states": random_states((4, 3, 8), "float32", seed=2)}
    for row, contents in ((1, (fields, fields, fields)), (2, (fields, other, fields))):
        for rank, content in enumerate(contents):
            drop_part(src, rid(row), 0, 4, 4, rank=rank, **content)
            move_once(src, dst)
    lines = lines_of(dst / "set")
    by_row = {row: [lines[part_name(rid(row), 0, 4, 4, rank=rank)] for rank in range(3)] for row in (1, 2)}
    assert [line.status for line in by_row[1]] == ["stored", "equal", "equal"]
    assert [line.status for line in by_row[2]] == ["stored", "quarantined", "quarantined"]
    assert "r00" in by_row[2][1].reason
    assert "r01" in by_row[2][1].reason
    assert "r01" in by_row[2][2].reason


def test_token_ids_of_ranks_are_compared_too(src: Path, dst: Path) -> None:
    fields: dict[str, Any] = {"writers": "all", "expected_ranks": [0, 1], "seed": 1}
    drop_part(src, rid(1), 0, 4, 4, rank=0, ids=[1, 2, 3, 4], **fields)
    drop_part(src, rid(1), 0, 4, 4, rank=1, ids=[1, 2, 3, 5], **fields)
    move_once(src, dst)
    reasons = [line.reason for line in lines_of(dst / "set").values() if line.status == "quarantined"]
    assert len(reasons) == 1
    assert "token ids" in reasons[0]


# -- whose parts


def test_runs_nobody_claims(src: Path, dst: Path, caplog: pytest.LogCaptureFixture) -> None:
    stray = [drop_part(src, rid(row, run="deadbeef"), 0, 4, 4, seed=row) for row in range(3)]
    data = {path.name: path.read_bytes() for path in stray}
    bad = drop_part(src, rid(7, run="deadbeef"), 0, 4, 4, data=b"junk")
    ours = drop_part(src, rid(1), 0, 4, 4)
    with caplog.at_level("WARNING", "hs_mover"):
        move_once(src, dst)
    assert list(lines_of(dst / "set")) == [ours.name]
    folder = dst / "unclaimed" / "deadbeef"
    assert not (folder / "manifest").exists()
    for name, content in data.items():
        assert read_stored(folder / f"{name}.hsz") == content
    assert (folder / "quarantine" / bad.name).read_bytes() == b"junk"
    assert len([r for r in caplog.messages if "deadbeef is registered by no client" in r]) == 1
    assert scratch_parts(src) == []


def test_a_run_that_was_begun_with_another_destination_is_named(
    src: Path, dst: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = "set has no dataset.json: run 0badcafe was begun with another --dst"
    register(src, "0badcafe", "set")
    drop_part(src, rid(1, run="0badcafe"), 0, 4, 4)
    with caplog.at_level("WARNING", "hs_mover"):
        move_once(src, dst)
    assert len([line for line in caplog.messages if said in line]) == 1
    caplog.clear()
    info = DatasetInfo(
        model="m", config_hash="0" * 16, num_layers=4, boundaries=[1, 3], dtype="float32", hidden_size=8,
        tokenizer="t", tokenizer_hash="h", template_hash="h",
    )  # fmt: skip
    DatasetPaths(dst / "set").write_info(info)
    drop_part(src, rid(2, run="0badcafe"), 0, 4, 4, boundaries=(1, 3))
    with caplog.at_level("WARNING", "hs_mover"):
        move_once(src, dst)
    assert not [line for line in caplog.messages if said in line]


def test_parts_of_a_run_of_another_destination_stay_until_that_one_is_back(
    src: Path, dst: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = tmp_path / "link", tmp_path / "there"
    here.symlink_to(dst)
    there.mkdir()
    for run, folder in (("0badcafe", there), ("0badcaff", here)):
        register(src, run, "set", dst=str(folder))
        for row in range(3):
            drop_part(src, rid(row, run=run), 0, 4, 4)
    with caplog.at_level("WARNING", "hs_mover"), pytest.raises(NotMoved, match="3 parts"):
        move_once(src, dst)
    said = f"run 0badcafe was begun with --dst {there}: its parts stay in scratch"
    assert len([line for line in caplog.messages if said in line]) == 1
    assert not [line for line in caplog.messages if "leaving" in line]
    assert {name[:11] for name in scratch_parts(src)} == {"hs-0badcafe"}
    assert {name[:11] for name in lines_of(dst / "set")} == {"hs-0badcaff"}
    move_once(src, there)
    assert scratch_parts(src) == []
    assert len(lines_of(there / "set")) == 3
    caplog.clear()
    with caplog.at_level("WARNING", "hs_mover"):
        move_once(src, dst)
    assert not [line for line in caplog.messages if said in line], "no part of that run is left in scratch"


@pytest.mark.parametrize("name", ["../out", "unclaimed", "", ".hidden", "a/b"])
def test_a_registration_cannot_lead_out_of_the_destination(src: Path, dst: Path, name: str) -> None:
    (ControlFolder(src).runs / "deadbeef.json").write_text(json.dumps({"run": "deadbeef", "dataset": name, "pid": 1}))
    drop_part(src, rid(1, run="deadbeef"), 0, 4, 4)
    move_once(src, dst)
    assert len(list((dst / "unclaimed" / "deadbeef").iterdir())) == 1
    assert sorted(path.name for path in dst.iterdir()) == [".hs-movers", "unclaimed"]


def test_what_is_not_a_part_is_left_alone(
    src: Path, dst: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "secret"
    outside.write_bytes(b"secret")
    (src / part_name(rid(50), 0, 4, 4)).symlink_to(outside)
    (src / part_name(rid(51), 0, 4, 4)).symlink_to(tmp_path / "nowhere")
    os.mkfifo(src / part_name(rid(52), 0, 4, 4))
    (src / part_name(rid(53), 0, 4, 4)).mkdir()
    (src / "psm_deadbeef").write_bytes(b"NCCL")
    (src / "nested").mkdir()
    (src / "hs-1.pt").write_bytes(b"x")
    Path(os.fsdecode(os.fsencode(src) + b"/\xff.pt")).write_bytes(b"x")
    canary = drop_part(src, rid(0, run="00000000"), 0, 4, 4)
    temporary = src / temporary_name(PartName.parse(part_name(rid(0, run="00000000"), 0, 4, 4)), NONCE)
    temporary.write_bytes(b"half")
    before = scratch_parts(src)
    good = drop_part(src, rid(1), 0, 4, 4)
    with caplog.at_level("INFO", "hs_mover"):
        move_once(src, dst)
    assert scratch_parts(src) == before
    assert outside.read_bytes() == b"secret"
    assert list(lines_of(dst / "set")) == [good.name]
    assert canary.exists()
    text = "\n".join(caplog.messages)
    for word in ("psm_deadbeef", "nested", "hs-1.pt", r"\udcff.pt", "symbolic link", "not a regular file"):
        assert word in text
    assert "canary" not in text
    assert canary.name not in text


def test_foreign_names_are_named_up_to_a_number(src: Path, dst: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(300):
        (src / f"foreign-{number:03d}").touch()
    good = drop_part(src, rid(1), 0, 4, 4)
    with caplog.at_level("INFO", "hs_mover"):
        move_once(src, dst)
    assert list(lines_of(dst / "set")) == [good.name]
    assert sum("foreign-" in message for message in caplog.messages) == 20
    assert caplog.messages.count("leaving more such names alone, without naming them") == 1
    assert len(list(src.glob("foreign-*"))) == 300


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_files_of_other_users_are_left_alone(src: Path, dst: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = drop_part(src, rid(1), 0, 4, 4)
    os.chown(path, 12345, 12345)
    move_once(src, dst)
    assert path.exists()
    assert any("belongs to user 12345" in message for message in caplog.messages)


# -- repetition


def test_the_same_part_again_is_dropped_and_other_bytes_are_a_conflict(src: Path, dst: Path) -> None:
    path = drop_part(src, rid(1), 0, 4, 4, seed=1)
    first = path.read_bytes()
    for _ in range(3):
        move_once(src, dst)
        drop_part(src, rid(1), 0, 4, 4, seed=1)
    move_once(src, dst)
    check_moved(dst / "set", {path.name: first})
    other = drop_part(src, rid(1), 0, 4, 4, seed=2).read_bytes()
    move_once(src, dst)
    third = drop_part(src, rid(1), 0, 4, 4, seed=3).read_bytes()
    move_once(src, dst)
    drop_part(src, rid(1), 0, 4, 4, seed=3)
    move_once(src, dst)
    assert scratch_parts(src) == []
    lines = raw_lines(dst / "set")
    assert [line["status"] for line in lines] == ["stored", "quarantined", "quarantined", "quarantined"]
    assert all("conflict" in line["reason"] and line["flags"] == ["conflict"] for line in lines[1:])
    assert lines_of(dst / "set")[path.name].status == "stored"
    assert read_stored(dst / "set" / lines[0]["path"]) == first
    kept = sorted((dst / "set" / "quarantine").glob("*.r00.pt*"))
    contents = [item.read_bytes() for item in kept if not item.name.endswith(".json")]
    assert sorted(contents) == sorted([other, third])


def test_a_part_met_again_under_another_codec_is_not_stored_twice(src: Path, dst: Path) -> None:
    for codec in ("none", "default", "zstd", "fast"):
        drop_part(src, "hs-deadbeef-00000001-00", 0, 4, 4)  # nobody's, so no line tells
        move_once(src, dst, codec=codec)
        assert [path.suffix for path in (dst / "unclaimed" / "deadbeef").iterdir()] == [".pt"]
        assert scratch_parts(src) == []


def test_stored_parts_without_a_line_are_adopted(src: Path, dst: Path) -> None:
    parts: dict[str, bytes] = {}
    for row in range(5):
        path = drop_part(src, rid(row), 0, 4, 4, seed=row)
        parts[path.name] = path.read_bytes()
    move_once(src, dst)
    manifest = next((dst / "set" / "manifest").iterdir())
    text = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(text[:2]) + text[2][:40])  # torn in the third line
    move_once(src, dst)
    lines = [msgspec.json.decode(line) for line in manifest.read_bytes().splitlines() if line.endswith(b"}")]
    assert sorted(line["part"] for line in lines) == sorted(parts)
    assert sum(line.get("flags") == ["adopted"] for line in lines) == 3
    for line in lines:
        assert read_stored(dst / "set" / line["path"]) == parts[line["part"]]
        assert line["xxh3"] == xxh3_hex([parts[line["part"]]])


@pytest.mark.parametrize(
    "line",
    [b'{"part":"%s","more":' + b"[" * 9999 + b"]" * 9999 + b"}\n", b'{"part":"%s\xff"}\n'],
    ids=["nested", "no text"],
)
def test_lines_of_others_that_cannot_be_read_end_no_mover(src: Path, dst: Path, line: bytes) -> None:
    first = drop_part(src, rid(0), 0, 4, 4)
    move_once(src, dst)
    other = dst / "set" / "manifest" / "other.jsonl"
    other.write_bytes(line % first.name.encode())
    drop_part(src, rid(1), 0, 4, 4)
    move_once(src, dst)
    assert scratch_parts(src) == []


def test_manifests_are_read_once_at_start_however_many_runs_there_were(
    src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [f"{number:08x}" for number in range(1, 9)]
    parts: dict[str, bytes] = {}
    for run in runs:
        register(src, run, "set")
        path = drop_part(src, rid(1, run=run), 0, 4, 4, seed=int(run, 16))
        parts[path.name] = path.read_bytes()
    move_once(src, dst)
    (manifest,) = (dst / "set" / "manifest").iterdir()
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[1:]))  # the first one was lost with the mover
    passes: list[Path] = []
    opened = open_regular

    def count(path: Path, **options: Any) -> Any:
        if path == manifest:
            passes.append(path)
        return opened(path, **options)

    monkeypatch.setattr(books, "open_regular", count)
    move_once(src, dst)
    monkeypatch.undo()
    assert len(passes) == 2, "once for all runs, and once more to be sure of the candidate"
    check_moved(dst / "set", parts)


def test_a_damaged_stored_file_without_a_line_is_replaced_by_its_source(src: Path, dst: Path) -> None:
    path = drop_part(src, rid(1), 0, 4, 4)
    data = path.read_bytes()
    final = dst / "set" / DatasetPaths(dst / "set").stored_name(PartName.parse(path.name), ".pt.hsz")
    final.parent.mkdir(parents=True)
    final.write_bytes(b"half of it")
    move_once(src, dst)
    check_moved(dst / "set", {path.name: data})


def test_a_damaged_stored_file_without_line_or_source_is_not_adopted(src: Path, dst: Path) -> None:
    final = dst / "set" / DatasetPaths(dst / "set").stored_name(PartName.parse(part_name(rid(1), 0, 4, 4)), ".pt.hsz")
    final.parent.mkdir(parents=True)
    final.write_bytes(b"half of it")
    move_once(src, dst)
    assert lines_of(dst / "set") == {}
    assert final.exists()


def test_only_its_own_temporaries_are_removed_from_the_destination(src: Path, dst: Path) -> None:
    path = drop_part(src, rid(1), 0, 4, 4)
    move_once(src, dst)
    (mover_id,) = [item.stem for item in (dst / "set" / "manifest").iterdir()]
    folder = dst / "set" / "data" / RUN / "000000"
    mine = [
        folder / f".{path.name}.hsz.{mover_id}.tmp",
        dst / "set" / "quarantine" / f".{path.name}.{mover_id}.tmp",
        dst / "unclaimed" / "deadbeef" / f".{path.name}.hsz.{mover_id}.tmp",
    ]
    others = folder / f".{path.name}.hsz.elsewhere-12345678.tmp"
    for item in (*mine, others):
        item.parent.mkdir(parents=True, exist_ok=True)
        item.write_bytes(b"half")
    move_once(src, dst)
    assert [item.exists() for item in mine] == [False, False, False]
    assert others.exists()


def test_temporaries_of_dead_launches_are_removed(src: Path, dst: Path) -> None:
    name = PartName.parse(part_name(rid(1), 0, 4, 4))
    dead = src / temporary_name(name, NONCE)
    dead.write_bytes(b"half")
    move_once(src, dst)
    assert not dead.exists()


def test_several_scratch_folders_share_a_destination(src: Path, dst: Path, tmp_path: Path) -> None:
    second = tmp_path / "scratch2"
    register(second, RUN, "set")
    parts = {}
    for row in range(6):
        path = drop_part(src if row % 2 else second, rid(row), 0, 4, 4, seed=row)
        parts[path.name] = path.read_bytes()
    move_once([src, second], dst)
    check_moved(dst / "set", parts)
    assert len(list((dst / "set" / "manifest").iterdir())) == 2
