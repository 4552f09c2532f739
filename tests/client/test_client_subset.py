"""`hs-client split` and `merge`: samples come out as they went in, payload is linked, and nothing is mixed up."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from chain import command
from hs_client.subset.commands import merge_command, split_command
from hs_client.subset.query import Candidate, Query, parse_fraction, parse_where, read_ids
from hs_client.verify.run import verify
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import PreflightError, UsageError
from hs_formats.hashing import ids_xxh3
from hs_formats.index import DatasetIndex, IndexedSample
from hs_formats.ledger import Done, Intent
from hs_formats.names import Rid
from hs_formats.reader import HiddenStateDataset
from hs_formats.verified import VerifiedSet
from part_factory import Record, dataset_info, write_dataset
from real_sets import chats, drawn_records, write_real_set

FIRST = drawn_records(chats(14, seed=1, longest=50))
SECOND = drawn_records(chats(12, seed=2, longest=50), run="0000beef")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two datasets that were made alike, the first one verified."""
    paths = write_real_set(tmp_path / "one", FIRST)
    write_real_set(tmp_path / "two", SECOND)
    samples = DatasetIndex.load(paths).samples
    VerifiedSet.of(samples.values(), verified_at="2026-01-02T03:04:05Z", checks=["books", "values"]).write(paths)
    return tmp_path / "one", tmp_path / "two"


def _same(root: Path, records: Sequence[Record], name: str = "{}") -> None:
    data = HiddenStateDataset(root)
    assert not data.broken
    assert list(data.sample_ids) == [name.format(record.sample_id) for record in records]
    for sample, record in zip(data, records, strict=True):
        assert sample.input_ids.tolist() == list(record.ids)
        assert torch.equal(sample.hidden_states, record.states)
        assert sample.loss_mask.nonzero().flatten().tolist() == list(range(*record.mask[0]))


def _state(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _nothing_is_wrong(root: Path) -> None:
    paths = DatasetPaths(root)
    info = paths.read_info()
    assert info is not None
    assert [str(finding) for finding in verify(paths, info).findings if finding.kind != "not called done"] == []


def _quiet(text: str) -> None:
    assert text


# -- split


def test_parts_of_a_dataset_are_the_dataset(two: tuple[Path, Path], tmp_path: Path) -> None:
    one, _ = two
    before = _state(one)
    said: list[str] = []
    for name, fraction in (("train", "0:0.5"), ("test", "0.5:1")):
        assert split_command(one, tmp_path / name, Query(fraction=parse_fraction(fraction)), say=said.append) == 0
    assert _state(one) == before
    parts = [HiddenStateDataset(tmp_path / name) for name in ("train", "test")]
    assert all(0 < len(part) < len(FIRST) for part in parts)
    assert sorted(name for part in parts for name in part.sample_ids) == sorted(r.sample_id for r in FIRST)
    ids = [{tuple(sample.input_ids.tolist()) for sample in part} for part in parts]
    assert not ids[0] & ids[1]  # equal prompts stay together
    for name in ("train", "test"):
        known = set(HiddenStateDataset(tmp_path / name).sample_ids)
        _same(tmp_path / name, [record for record in FIRST if record.sample_id in known])
        _nothing_is_wrong(tmp_path / name)
        files = sorted((tmp_path / name / "data").rglob("hs-*"))
        assert files
        assert all(path.samefile(one / path.relative_to(tmp_path / name)) for path in files)
    # And back.
    assert merge_command(tmp_path / "again", [tmp_path / "train", tmp_path / "test"], say=said.append) == 0
    _same(tmp_path / "again", FIRST)
    _nothing_is_wrong(tmp_path / "again")
    marks = VerifiedSet.read(DatasetPaths(tmp_path / "again"))
    assert (len(marks), marks.verified_at, marks.checks) == (14, "2026-01-02T03:04:05Z", ("books", "values"))
    assert len(HiddenStateDataset(tmp_path / "again", verified_only=True)) == 14


def test_samples_by_their_ids(two: tuple[Path, Path], tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_text('chat-3\n\n{"id": "chat-1", "text": "x"}\nnobody\n')
    said: list[str] = []
    query = Query(ids=read_ids(file))
    assert split_command(two[0], tmp_path / "out", query, say=said.append) == 1
    assert any("1 of the ids are no samples" in line and "'nobody'" in line for line in said)
    _same(tmp_path / "out", [FIRST[1], FIRST[3]])
    assert split_command(two[0], tmp_path / "rest", replace(query, invert=True), say=said.append) == 1
    _same(tmp_path / "rest", [record for at, record in enumerate(FIRST) if at not in (1, 3)])


def test_payload_that_is_linked_to_from_elsewhere_comes_along(two: tuple[Path, Path], tmp_path: Path) -> None:
    for at, stored in enumerate(sorted((two[0] / "data").rglob("*.hsz"))):
        away = tmp_path / f"away-{at}"
        stored.rename(away)
        stored.symlink_to(os.path.relpath(away, stored.parent) if at % 2 else away)
    assert split_command(two[0], tmp_path / "deeper" / "out", Query(), say=_quiet) == 0
    _same(tmp_path / "deeper" / "out", FIRST)
    assert not [path for path in (tmp_path / "deeper" / "out").rglob("*") if path.is_symlink()]
    _nothing_is_wrong(tmp_path / "deeper" / "out")


def test_of_two_copies_the_verified_one_is_taken(two: tuple[Path, Path], tmp_path: Path) -> None:
    again = [replace(record, rid=Rid("0000cafe", record.rid.row, 0)) for record in FIRST]
    write_real_set(tmp_path / "again", again)
    unverified = tmp_path / "copy"
    shutil.copytree(two[0], unverified)
    DatasetPaths(unverified).verified.unlink()
    for number, order in enumerate([(tmp_path / "again", two[0]), (two[0], tmp_path / "again"), (unverified, two[0])]):
        out = tmp_path / f"out{number}"
        assert merge_command(out, order, say=_quiet) == 0
        data = HiddenStateDataset(out, verified_only=True)
        assert len(data) == len(FIRST)
        assert {str(sample.rid) for sample in data.samples.values()} == {str(record.rid) for record in FIRST}
    assert merge_command(tmp_path / "first", (tmp_path / "again", unverified), say=_quiet) == 0
    assert {sample.rid.run for sample in HiddenStateDataset(tmp_path / "first").samples.values()} == {"0000cafe"}


def test_a_dry_run_writes_nothing(two: tuple[Path, Path], tmp_path: Path) -> None:
    said: list[str] = []
    assert split_command(two[0], tmp_path / "out", Query(tokens=(1, 20)), dry_run=True, say=said.append) == 0
    assert merge_command(tmp_path / "out", two, dry_run=True, say=said.append) == 0
    assert not (tmp_path / "out").exists()
    assert f"chosen     {sum(len(record.ids) <= 20 for record in FIRST)} of 14 samples" in said


def test_payload_is_copied_where_it_cannot_be_linked(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    link = os.link
    monkeypatch.setattr(os, "link", lambda a, b, **k: link(a, b, **k) if "dataset.json" in str(b) else refuse())
    said: list[str] = []
    assert split_command(two[0], tmp_path / "out", Query(), say=said.append) == 0
    assert any("0 linked, " in line for line in said)
    _same(tmp_path / "out", FIRST)
    monkeypatch.undo()
    assert split_command(two[0], tmp_path / "out2", Query(), copy=True, say=said.append) == 0
    assert not any(path.stat().st_nlink > 1 for path in (tmp_path / "out2" / "data").rglob("hs-*"))


def test_broken_samples_are_left_out_and_named(two: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = next((two[0] / "manifest").glob("*.jsonl"))
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[1:]))
    said: list[str] = []
    assert split_command(two[0], tmp_path / "out", Query(), say=said.append) == 1
    assert any("1 samples of" in line and "are broken and left out: 'chat-0'" in line for line in said)
    _same(tmp_path / "out", FIRST[1:])


def test_a_missing_file_stops_it_and_leaves_nothing(two: tuple[Path, Path], tmp_path: Path) -> None:
    sorted((two[0] / "data").rglob("hs-*"))[5].unlink()
    (tmp_path / ".out.4194305.building").mkdir()  # no such process can be
    with pytest.raises(PreflightError, match=r"of sample 'chat-\d+' is missing"):
        split_command(two[0], tmp_path / "out", Query(), say=_quiet)
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]


# -- merge


def test_two_datasets_become_one(two: tuple[Path, Path], tmp_path: Path) -> None:
    before = [_state(root) for root in two]
    assert merge_command(tmp_path / "out", two, say=_quiet) == 0
    _same(tmp_path / "out", [*FIRST, *SECOND])
    _nothing_is_wrong(tmp_path / "out")
    assert [_state(root) for root in two] == before
    assert len(VerifiedSet.read(DatasetPaths(tmp_path / "out"))) == len(FIRST)
    runs = sorted(path.stem for path in (tmp_path / "out" / "ledger").glob("*"))
    assert runs == ["0000abcd", "0000beef"]


def test_one_prompt_in_both_is_taken_once(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = [replace(record, rid=Rid("0000cafe", record.rid.row, 0)) for record in FIRST[:5]]
    write_real_set(tmp_path / "three", other)
    said: list[str] = []
    assert merge_command(tmp_path / "out", [two[0], tmp_path / "three"], say=said.append) == 0
    assert any("5 samples are in several datasets" in line for line in said)
    _same(tmp_path / "out", FIRST)


def test_one_id_for_two_prompts_needs_a_prefix(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = [replace(record, sample_id=FIRST[at].sample_id) for at, record in enumerate(SECOND[5:])]
    write_real_set(tmp_path / "three", other)
    with pytest.raises(PreflightError, match="both have a sample 'chat-0', for different prompts or masks"):
        merge_command(tmp_path / "out", [two[0], tmp_path / "three"], say=_quiet)
    assert not (tmp_path / "out").exists()
    assert merge_command(tmp_path / "out", [two[0], tmp_path / "three"], prefix_ids=True, say=_quiet) == 0
    data = HiddenStateDataset(tmp_path / "out")
    assert set(data.sample_ids) == {f"one/{r.sample_id}" for r in FIRST} | {f"three/{r.sample_id}" for r in other}
    assert torch.equal(data["three/chat-0"].hidden_states, SECOND[5].states)
    assert len(HiddenStateDataset(tmp_path / "out", verified_only=True)) == len(FIRST)
    _nothing_is_wrong(tmp_path / "out")


def test_one_request_for_two_samples_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    other = [replace(record, rid=FIRST[0].rid) for record in SECOND[5:6]]
    write_real_set(tmp_path / "three", other)
    with pytest.raises(PreflightError, match=f"both have a request {FIRST[0].rid}"):
        merge_command(tmp_path / "out", [two[0], tmp_path / "three"], say=_quiet)


@pytest.mark.parametrize(
    "change", [{"boundaries": [1, 3]}, {"config_hash": "other"}, {"tokenizer_hash": "other"}, {"dtype": "bfloat16"}]
)
def test_datasets_that_were_made_otherwise_are_not_mixed(tmp_path: Path, change: dict[str, Any]) -> None:
    write_dataset(tmp_path / "one", [])
    write_dataset(tmp_path / "two", [], info=dataset_info(**change))
    with pytest.raises(PreflightError, match=rf"was not made as .*one was: {next(iter(change))}"):
        merge_command(tmp_path / "out", [tmp_path / "one", tmp_path / "two"], say=_quiet)


def test_wrong_use_is_told(two: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="exists: name a new dataset"):
        split_command(two[0], two[1], Query(), say=_quiet)
    with pytest.raises(UsageError, match=r"no sample of .* is meant: 14 are there"):
        split_command(two[0], tmp_path / "out", Query(tokens=(1000, 2000)), say=_quiet)
    with pytest.raises(UsageError, match="dataset name"):
        split_command(two[0], tmp_path / "-x", Query(), say=_quiet)
    with pytest.raises(UsageError, match="different names"):
        merge_command(tmp_path / "out", [two[0], two[0]], prefix_ids=True, say=_quiet)
    with pytest.raises(PreflightError, match="is no dataset"):
        merge_command(tmp_path / "out", [two[0], tmp_path], say=_quiet)
    write_dataset(tmp_path / "empty", [])
    with pytest.raises(UsageError, match="hold no sample"):
        merge_command(tmp_path / "out", [tmp_path / "empty"], say=_quiet)
    for text in ("x=1", "rid", ""):
        with pytest.raises(UsageError, match="give FIELD=PATTERN"):
            parse_where(text)
    for text in ("0.5", "0.5:0.5", "-1:1", "0:2", "a:b", "0:nan"):
        with pytest.raises(UsageError, match="give LOW:HIGH"):
            parse_fraction(text)
    with pytest.raises(UsageError, match="No such file"):
        read_ids(tmp_path / "nowhere")
    (tmp_path / "ids").write_text('{"text": 1}\n')
    with pytest.raises(UsageError, match=":1: the row has no id"):
        read_ids(tmp_path / "ids")


def test_the_command_lines(two: tuple[Path, Path], tmp_path: Path) -> None:
    def run(*words: str | Path) -> tuple[int, str]:
        done = subprocess.run([command("hs-client"), *map(str, words)], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    code, text = run("merge", tmp_path / "both", *two)
    assert (code, "26 samples" in text) == (0, True), text
    code, text = run("split", tmp_path / "both", tmp_path / "some", "--where", "run=0000beef", "--max-tokens", "30")
    assert code == 0, text
    _same(tmp_path / "some", [record for record in SECOND if len(record.ids) <= 30])
    code, text = run("split", tmp_path / "both", tmp_path / "some")
    assert (code, "exists: name a new dataset" in text) == (2, True)
    shutil.rmtree(two[0])
    shutil.rmtree(two[1])
    _same(tmp_path / "both", [*FIRST, *SECOND])  # links are as good as the files


# -- which samples


def _candidate(
    n: int = 5, number: int = 0, *, verified: bool = True, spans: Sequence[tuple[int, int]] = ()
) -> Candidate:
    rid = Rid("0000abcd", number, 0)
    ids = ids_xxh3([number])
    sample = IndexedSample(f"s{number}", rid, n, ids, tuple(spans), ())
    intent = Intent(sample_id=f"s{number}", rid=str(rid), n=n, ids_xxh3=ids, mask=list(spans), row=f"p.jsonl:{number}")
    return Candidate(sample, intent, Done(sample_id=f"s{number}", rid=str(rid), finish_reason="length"), verified)


@given(st.floats(0, 1), st.integers(0, 1000))
def test_a_division_has_every_sample_once(at: float, number: int) -> None:
    if not 0 < at < 1:
        return
    parts = [Query(fraction=parse_fraction(text)) for text in (f"0:{at!r}", f"{at!r}:1")]
    assert sum(query.takes(_candidate(number=number)) for query in parts) == 1


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.booleans(), st.integers(0, 9))
def test_inverting_takes_just_the_others(n: int, low: int, high: int, verified: bool, trained: int) -> None:
    candidate = _candidate(n, verified=verified, spans=[(0, min(n, 4))])
    query = Query(tokens=(low, high), trained=(trained, 9), verified=True)
    assert query.takes(candidate) != replace(query, invert=True).takes(candidate)
    assert query.takes(candidate) == (low <= n <= high and verified and trained <= min(n, 4))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("run=0000abcd", True),
        ("run=0000abc?", True),
        ("run=1*", False),
        ("row=p.jsonl:7", True),
        ("row=*.jsonl:[0-6]", False),
        ("finish_reason=length", True),
        ("adopted=false", True),
        ("sample_id=s7", True),
        ("rid=hs-0000abcd-0000000[0-9]-00", True),
        ("content=", True),
    ],
)
def test_fields_are_compared_with_patterns(text: str, fits: bool) -> None:
    assert Query(where=[parse_where(text)]).takes(_candidate(number=7)) is fits


def test_ids_are_read_as_lines_or_rows(tmp_path: Path) -> None:
    file = tmp_path / "ids"
    file.write_text("\ufeffa b\n" + json.dumps({"id": 7, "text": "x"}) + "\n\n c \n")
    assert read_ids(file) == {"a b", "7", "c"}
