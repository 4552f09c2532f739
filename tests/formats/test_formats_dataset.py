from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from hs_formats.dataset import ROWS_PER_FOLDER, UNCLAIMED, DatasetPaths, check_dataset_name
from hs_formats.errors import FormatError
from hs_formats.hashing import ids_bytes, ids_xxh3, row_sample_id, xxh3_hex
from hs_formats.index import DatasetIndex, record_parts
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Intent, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.reader import DamagedSample, HiddenStateDataset
from hs_formats.stored import CODECS
from part_factory import Record, dataset_info, random_record, write_dataset

RID = Rid("0000abcd", 7, 0)


def _line(start: int, stop: int, n: int, *, rank: int = 0, **changes: Any) -> ManifestLine:
    fields: dict[str, Any] = {
        "part": str(PartName(RID, start, stop, n, rank)),
        "status": "stored",
        "path": "data/x",
        "raw_bytes": 1,
        "stored_bytes": 1,
        "codec": "none",
        "rows_xxh3": f"{start}-{stop}",
        "expected_ranks": [0],
    }
    return ManifestLine(**(fields | changes))


# -- dataset.json and names


def test_info_is_written_once_and_read_back(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path / "set")
    assert paths.read_info() is None
    paths.create()
    assert paths.read_info() is None
    info = dataset_info(capture={"writers": "first"})
    assert paths.write_info(info)
    assert not paths.write_info(replace(info, dtype="bfloat16"))
    assert paths.read_info() == info
    assert sorted(os.listdir(paths.root)) == ["data", "dataset.json", "ledger", "manifest"]


def test_differences_name_what_matters() -> None:
    info = dataset_info()
    assert info.differences(replace(info, model="/elsewhere", tokenizer="/elsewhere", capture={"x": 1})) == []
    assert info.differences(replace(info, tokenizer_hash="", template_hash="")) == []  # a run of token ids
    (found,) = info.differences(replace(info, boundaries=[1, 3]))
    assert "boundaries" in found
    assert "[1, 2]" in found
    assert "[1, 3]" in found
    for field in ("config_hash", "dtype", "hidden_size", "tokenizer_hash", "template_hash", "last_state", "num_layers"):
        changed: dict[str, Any] = {field: "x"}
        assert len(info.differences(replace(info, **changed))) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 99999,
        b'{"format":"hs-dataset","version":2}',
        b'{"format":"hs-dataset","version":1,"model":3}',
    ],
)
def test_a_damaged_info_is_named(tmp_path: Path, data: bytes) -> None:
    paths = DatasetPaths(tmp_path)
    paths.info.write_bytes(data)
    with pytest.raises(FormatError, match=r"dataset\.json"):
        paths.read_info()


@pytest.mark.parametrize("name", ["", ".", "..", ".x", "-x", "a/b", "a b", "é", "x" * 129, UNCLAIMED, "a\n", "a\0"])
def test_names_that_are_no_folder_of_their_own(name: str) -> None:
    with pytest.raises(FormatError, match="dataset name"):
        check_dataset_name(name)
    assert check_dataset_name("prompts-1.v2_x") == "prompts-1.v2_x"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "data/../../x", "data/\0x", "//x", "."])
def test_manifest_paths_stay_inside(tmp_path: Path, path: str) -> None:
    with pytest.raises(FormatError, match="no path of a stored part"):
        DatasetPaths(tmp_path).stored_file(path)
    assert DatasetPaths(tmp_path).stored_file("data/x") == tmp_path / "data" / "x"


def test_where_parts_lie(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    folders = {paths.stored_name(PartName(Rid("0000abcd", row, 0), 0, 1, 1, 0), ".pt.zst") for row in (0, 499, 500)}
    assert sorted(name.rsplit("/", 1)[0] for name in folders) == [
        "data/0000abcd/000000",
        "data/0000abcd/000000",
        "data/0000abcd/000001",
    ]
    assert all(name.endswith(".r00.pt.zst") for name in folders)
    assert ROWS_PER_FOLDER * 4 <= 2000


# -- hashes


def test_hashes_of_ids_are_those_of_a_parts_bytes() -> None:
    ids = [0, 1, 2**31, 151_643]
    assert ids_bytes(ids) == torch.tensor(ids).numpy().tobytes()
    assert ids_xxh3(ids) == xxh3_hex([ids_bytes(ids)[:5], ids_bytes(ids)[5:]])
    assert xxh3_hex([]) == "99aa06d3014798d86001c324468d497f"


SCALAR = st.none() | st.booleans() | st.integers() | st.text()
JSON = SCALAR | st.lists(SCALAR | st.lists(SCALAR, max_size=3), max_size=3)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5))
def test_a_sample_id_does_not_depend_on_the_order_of_keys(row: dict[str, Any]) -> None:
    one = row_sample_id(row)
    assert one == row_sample_id(dict(reversed(row.items())))
    assert one != row_sample_id({**row, "more keys than fit": 1})
    assert one.startswith("row-")
    assert len(one) == 36


# -- records


@given(st.lists(st.integers(1, 9), unique=True), st.randoms(use_true_random=False))
def test_parts_of_a_record_in_any_order(cuts: list[int], random: Any) -> None:
    edges = [0, *sorted(cuts), 10]
    lines = [_line(a, b, 10) for a, b in itertools.pairwise(edges)]
    shuffled = list(lines)
    random.shuffle(shuffled)
    assert record_parts(10, shuffled) == tuple(lines)
    assert record_parts(10, shuffled[1:]) is None
    assert record_parts(11, shuffled) is None


ALL: dict[str, Any] = {"writers": "all", "expected_ranks": [0, 1]}


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ([], None),
        ([_line(0, 4, 4, status="quarantined", reason="x")], None),
        ([_line(0, 2, 4), _line(2, 4, 4, status="quarantined")], None),
        ([_line(0, 3, 4), _line(2, 4, 4)], None),
        ([_line(0, 2, 4, writers="spread"), _line(2, 4, 4, rank=1, writers="spread")], [0, 2]),
        ([_line(0, 2, 4), _line(2, 4, 4, writers="spread")], None),
        ([_line(0, 4, 4, **ALL), _line(0, 4, 4, rank=1, status="equal", **ALL)], [0]),
        ([_line(0, 4, 4, **ALL, status="equal"), _line(0, 4, 4, rank=1, **ALL)], [0]),
        ([_line(0, 4, 4, **ALL), _line(0, 4, 4, rank=1, **ALL)], [0]),  # both kept after a crash
        ([_line(0, 4, 4, **ALL)], None),
        ([_line(0, 4, 4, **ALL), _line(0, 4, 4, rank=1, status="equal", rows_xxh3="other", **ALL)], None),
        ([_line(0, 4, 4, **ALL, status="equal"), _line(0, 4, 4, rank=1, **ALL, status="equal")], None),
        (
            [
                _line(0, 2, 4, **ALL),
                _line(2, 4, 4, **ALL, status="equal"),
                _line(0, 2, 4, rank=1, **ALL, status="equal"),
                _line(2, 4, 4, rank=1, **ALL),
            ],
            [0, 2],
        ),
    ],
)
def test_what_makes_a_record(lines: Sequence[ManifestLine], kept: list[int] | None) -> None:
    for order in (lines, list(reversed(lines))):
        parts = record_parts(4, order)
        assert (None if parts is None else [line.name.start for line in parts]) == kept
        assert parts is None or all(line.status == "stored" for line in parts)


def _load(root: Path) -> DatasetIndex:
    return DatasetIndex.load(DatasetPaths(root))


def test_the_index_orders_by_run_and_row(tmp_path: Path) -> None:
    records = [random_record(row, 3, run=run) for run, row in (("ffff0000", 1), ("ffff0000", 0), ("00001111", 5))]
    paths = write_dataset(tmp_path, records)
    # ffff0000 ran first although its name sorts last
    for run, started in (("ffff0000", "2026-01-01T00:00:00Z"), ("00001111", "2026-01-03T00:00:00Z")):
        ledger = paths.ledger_file(run)
        rest = ledger.read_bytes().split(b"\n", 1)[1]
        ledger.unlink()
        with AppendLog(ledger) as log:
            log.append([RunStarted(run=run, started_at=started, inputs=[], servers=[], version="0")])
        with ledger.open("ab") as file:
            file.write(rest)
    assert list(_load(tmp_path).samples) == ["s0", "s1", "s5"]


def test_the_lowest_winning_rid_counts(tmp_path: Path) -> None:
    one = random_record(1, 3, sample_id="same")
    two = random_record(2, 4, sample_id="same")
    write_dataset(tmp_path, [two, one])
    assert _load(tmp_path).samples["same"].rid == one.rid


def test_of_two_records_a_whole_one_counts(tmp_path: Path) -> None:
    one = random_record(1, 3, sample_id="same")
    two = random_record(2, 4, sample_id="same")
    paths = write_dataset(tmp_path, [two, one])
    manifest = next(paths.manifest.glob("*.jsonl"))
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(line for line in lines if str(one.rid).encode() not in line))
    index = _load(tmp_path)
    assert not index.broken
    assert index.samples["same"].rid == two.rid
    manifest.write_bytes(b"")
    index = _load(tmp_path)
    assert not index.samples
    assert index.broken["same"].rid == str(one.rid)


def test_only_done_samples_are_there(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, [random_record(1, 3)])
    with AppendLog(paths.ledger_file("0000abcd")) as log:
        log.append([Intent(sample_id="open", rid="hs-0000abcd-00000009-00", n=3, ids_xxh3="", mask=[])])
    assert list(_load(tmp_path).samples) == ["s1"]


def test_a_record_that_another_sample_claims_first_is_still_its_owners(tmp_path: Path) -> None:
    one = random_record(1, 3)
    paths = write_dataset(tmp_path, [one])
    for run, started in (("00000001", "2020-01-01T00:00:00Z"), ("ffffffff", "2030-01-01T00:00:00Z")):
        with AppendLog(paths.ledger_file(run)) as log:
            log.append([RunStarted(run=run, started_at=started, inputs=[], servers=[], version="0")])
            log.append([Done(sample_id=f"of {run}", rid=str(one.rid))])
    index = _load(tmp_path)
    assert list(index.samples) == ["s1"]
    assert set(index.broken) == {"of 00000001", "of ffffffff"}
    assert all("which no ledger line announced for it" in broken.reason for broken in index.broken.values())


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([Done(sample_id="x", rid="hs-0000abcd-00000009-00")], "which no ledger line announced"),
        ([Done(sample_id="x", rid="hs-0000abcd-00000001-00")], "which no ledger line announced for it"),
        (
            [
                Intent(sample_id="x", rid="hs-0000abcd-00000009-00", n=3, ids_xxh3="", mask=[]),
                Done(sample_id="x", rid="hs-0000abcd-00000009-00"),
            ],
            "do not tile",
        ),
    ],
)
def test_a_done_line_without_its_record_breaks_one_sample_only(tmp_path: Path, lines: list[Any], says: str) -> None:
    paths = write_dataset(tmp_path, [random_record(1, 3)])
    with AppendLog(paths.ledger_file("0000abcd")) as log:
        log.append(lines)
    index = _load(tmp_path)
    assert list(index.samples) == ["s1"]
    assert list(index.broken) == ["x"]
    assert says in index.broken["x"].reason
    data = HiddenStateDataset(tmp_path)
    assert sorted(data.sample_ids) == ["s1", "x"]  # it keeps its place
    assert sorted(data.lengths()) == [0, 3]
    assert data["s1"].input_ids.shape == (3,)
    for key in ("x", data.sample_ids.index("x")):
        with pytest.raises(DamagedSample, match=says):
            data[key]


def test_a_mask_beyond_the_tokens_breaks_its_sample(tmp_path: Path) -> None:
    write_dataset(tmp_path, [random_record(0, 3), random_record(1, 3, mask=((1, 4),))])
    index = _load(tmp_path)
    assert list(index.samples) == ["s0"]
    assert "does not fit 3 tokens" in index.broken["s1"].reason


# -- the reader


RECORDS = [
    random_record(0, 1),
    random_record(1, 9, cuts=(4, 8), mask=((2, 4), (8, 9))),
    random_record(2, 5, run="0000abce", mask=()),
]


def _same(sample: Any, record: Record) -> None:
    assert sample.sample_id == record.sample_id
    assert sample.input_ids.tolist() == list(record.ids)
    assert sample.input_ids.dtype == sample.loss_mask.dtype == torch.int64
    assert torch.equal(sample.hidden_states, record.states)
    spans = [t for a, b in record.mask for t in range(a, b)]
    assert [t for t, value in enumerate(sample.loss_mask.tolist()) if value] == spans


@pytest.mark.parametrize("codec", CODECS)
def test_read_by_index_by_id_and_in_order(tmp_path: Path, codec: str) -> None:
    write_dataset(tmp_path, RECORDS, codec=codec)
    dataset = HiddenStateDataset(tmp_path)
    assert len(dataset) == 3
    assert dataset.sample_ids == ("s0", "s1", "s2")
    for position, (sample, record) in enumerate(zip(dataset, RECORDS, strict=True)):
        _same(sample, record)
        _same(dataset[position], record)
        _same(dataset[record.sample_id], record)
    _same(dataset[-1], RECORDS[-1])
    with pytest.raises(IndexError):
        dataset[3]
    with pytest.raises(KeyError):
        dataset["s3"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_models_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: Any) -> None:
    states = torch.tensor([[[70_000.0, -0.0, 1e-40, 3.0]] * 3]).to(dtype)
    record = replace(random_record(0, 1), states=states)
    write_dataset(tmp_path, [record], info=dataset_info(dtype=str(dtype).removeprefix("torch.")))
    sample = HiddenStateDataset(str(tmp_path))["s0"]
    assert sample.hidden_states.dtype == dtype
    assert torch.equal(sample.hidden_states.view(torch.int16), states.view(torch.int16))


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_byte_is_reported_with_its_file(tmp_path: Path, codec: str) -> None:
    paths = write_dataset(tmp_path, RECORDS, codec=codec)
    damaged = sorted(paths.data.rglob("hs-0000abcd-00000001*"))[1]
    whole = damaged.read_bytes()
    for at in range(0, len(whole), 37):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        dataset = HiddenStateDataset(tmp_path)
        with pytest.raises(FormatError, match=damaged.name):
            dataset["s1"]
        _same(dataset["s0"], RECORDS[0])
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:cut])
        with pytest.raises(FormatError, match=damaged.name):
            HiddenStateDataset(tmp_path)["s1"]
    damaged.unlink()
    with pytest.raises(DamagedSample, match=rf"'s1' cannot be read.*{damaged.name}"):
        HiddenStateDataset(tmp_path)["s1"]


def test_swapped_files_and_swapped_ids_are_found(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, RECORDS, codec="none")
    first, second = sorted(paths.data.rglob("hs-0000abcd-00000001*"))[:2]
    second.write_bytes(first.read_bytes())
    with pytest.raises(FormatError, match=second.name):
        HiddenStateDataset(tmp_path)["s1"]
    ledger = paths.ledger_file("0000abcd")
    text = ledger.read_text()
    ledger.write_text(text.replace(ids_xxh3(RECORDS[0].ids), ids_xxh3([1])))
    with pytest.raises(FormatError, match="s0"):
        HiddenStateDataset(tmp_path)["s0"]


def test_what_is_no_dataset_or_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="is no dataset"):
        HiddenStateDataset(tmp_path / "nothing")
    paths = write_dataset(tmp_path, RECORDS)
    paths.info.unlink()
    paths.write_info(dataset_info(boundaries=[1, 3]))
    with pytest.raises(FormatError, match=r"does not fit the dataset: boundaries \[1, 2\]"):
        HiddenStateDataset(tmp_path)["s0"]
