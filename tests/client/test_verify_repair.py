"""`hs-client verify --repair`: after it nothing is wrong, what was good is untouched, and what is lost is said."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from chain import command
from client_runs import Ended
from faults import FAULTS, Fault, clean_copy
from golden_files import CLIENT, MOVER
from hs_client.claim import hold_claim
from hs_client.history import read_history
from hs_client.info_command import info_lines
from hs_client.rows import digest
from hs_client.verify.command import VerifySettings, verify_command
from hs_client.verify.repair import repair
from hs_client.verify.run import verify
from hs_formats.control import ControlFolder, now_s
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import PreflightError, StorageError, UsageError
from hs_formats.fixed_record import FixedRecord
from hs_formats.index import DatasetIndex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Failed, read_ledger
from hs_formats.manifest import ManifestReader
from hs_formats.reader import HiddenStateDataset
from hs_formats.verified import VerifiedSet
from part_factory import Record, dataset_info, write_dataset
from real_sets import BOUNDARIES, chats, drawn_records, write_real_set

# All whose finding is certain; suspicions change nothing, and dataset.json is not rebuilt.
SUSPICIONS = {
    "unlike equal beginnings",
    "unlike its tokens",
    "implausible size",
    "shifted rows",
    "rows of another sample",
}
CERTAIN = [fault for fault in FAULTS if not {*SUSPICIONS, "unlike dataset.json", "unknown request"} & set(fault.kinds)]


def test_most_faults_are_repaired() -> None:
    assert len(CERTAIN) >= 55


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sequence[Record]]:
    """A clean dataset, its records, and beside it the prompts that it was made from."""
    root = tmp_path_factory.mktemp("clean") / "set"
    records = drawn_records(chats(24, seed=4, longest=70))
    write_real_set(root, records)
    return root, records


def _prompts(path: Path, records: Sequence[Record]) -> Path:
    rows = []
    for record in records:
        n = len(record.ids)
        mask = [int(any(start <= at < stop for start, stop in record.mask)) for at in range(n)]
        rows.append({"id": record.sample_id, "input_ids": list(record.ids), "loss_mask": mask})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _run(root: Path, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    settings = VerifySettings(dataset=root, scratch=root.parent / "no-scratch", **options)
    return verify_command(settings, stream=out), out.getvalue()


def _check_samples(root: Path, records: Sequence[Record], lost: set[str]) -> None:
    data = HiddenStateDataset(root)
    assert not data.broken
    by_id = {record.sample_id: record for record in records}
    assert set(data.sample_ids) == set(by_id) - lost
    for sample in data:
        record = by_id[sample.sample_id]
        assert sample.input_ids.tolist() == list(record.ids)
        assert torch.equal(sample.hidden_states, record.states)
        assert sample.loss_mask.nonzero().flatten().tolist() == list(range(*record.mask[0]))


def test_a_clean_set_needs_no_repair(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    code, text = _run(root, repair=True)
    assert (code, "repaired   nothing" in text, "nothing is wrong" in text) == (0, True, True), text
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert set(after) - set(before) == {root / "verified.json"}
    assert all(after[path] == data for path, data in before.items())


@pytest.mark.parametrize("fault", CERTAIN, ids=lambda fault: fault.name)
def test_after_a_repair_nothing_is_wrong(clean: tuple[Path, Sequence[Record]], tmp_path: Path, fault: Fault) -> None:
    source, records = clean
    root = clean_copy(source, tmp_path / "set")
    fault.inject(root, records)
    prompts = _prompts(tmp_path / "prompts.jsonl", records)
    report = tmp_path / "report.json"
    code, text = _run(root, repair=True, prompts=(prompts,), json=str(report))
    told = json.loads(report.read_text())
    lost = set(told["repaired"]["lost"])
    assert told["counts"]["error"] == {}, text
    assert code == int(bool(lost or told["counts"]["suspect"]))
    known = {record.sample_id for record in records}
    _check_samples(root, records, lost & known)
    # No more is lost than was harmed, and what is lost is sent again.
    assert len(lost & known) <= 2 or "missing folder" in fault.name, text
    history = read_history(DatasetPaths(root))
    assert {record.sample_id for record in records if digest(record.sample_id) in history.done} == known - lost
    assert not history.open
    # A second repair has nothing to do.
    again, text = _run(root, repair=True, prompts=(prompts,))
    assert "repaired   nothing" in text
    assert again == (1 if told["counts"]["suspect"] else 0), text


def test_what_only_the_books_had_wrong_is_mended_without_loss(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path
) -> None:
    """Both folders of books gone: everything comes back from the files and the prompts."""
    source, records = clean
    root = clean_copy(source, tmp_path / "set")
    shutil.rmtree(root / "manifest")
    shutil.rmtree(root / "ledger")
    code, text = _run(root)
    assert code == 1
    assert "no manifest line" in text
    assert "unknown request" in text
    code, text = _run(root, repair=True)  # the manifest can be rebuilt, the samples cannot
    assert code == 1
    assert "whole records of no known sample: --prompts FILE" in text
    code, text = _run(root, repair=True, prompts=(_prompts(tmp_path / "p.jsonl", records),))
    assert code == 0, text
    _check_samples(root, records, set())
    old, new = DatasetIndex.load(DatasetPaths(source)).samples, DatasetIndex.load(DatasetPaths(root)).samples
    same = [record.sample_id for record in records if [list(r.ids) for r in records].count(list(record.ids)) == 1]
    assert all(new[name].rid == old[name].rid for name in same)
    assert all(
        [line.xxh3 for line in new[name].parts] == [line.xxh3 for line in old[name].parts]
        and [line.rows_xxh3 for line in new[name].parts] == [line.rows_xxh3 for line in old[name].parts]
        for name in same
    )
    assert VerifiedSet.read(DatasetPaths(root)).missing(new.values()) == []


def test_prompts_that_were_cut_are_matched_by_what_was_kept(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path
) -> None:
    source, records = clean
    root = clean_copy(source, tmp_path / "set")
    (root / "ledger" / "0000abcd.jsonl").unlink()
    rows = [{"id": r.sample_id, "input_ids": [*r.ids, 5, 6, 7]} for r in records if len(r.ids) > 40]
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _run(root, repair=True, prompts=(prompts,))
    assert set(HiddenStateDataset(root).sample_ids) == {row["id"] for row in rows}


def test_old_books_are_kept(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    ledger = root / "ledger" / "0000abcd.jsonl"
    harmed = ledger.read_bytes().replace(b'"type":"done"', b'"type":"dune"', 1)
    ledger.write_bytes(harmed)
    code, text = _run(root, repair=True)
    assert code == 0, text
    (kept,) = (root / "repairs").rglob("*.jsonl")
    assert kept.read_bytes() == harmed
    assert str(kept.parent.parent.relative_to(root)) in text


def test_bad_values_make_a_sample_be_sent_again(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    source, records = clean
    root = clean_copy(source, tmp_path / "set")
    (fault,) = [fault for fault in FAULTS if fault.name == "nan in one value"]
    sample = fault.inject(root, records)
    code, text = _run(root, repair=True)
    assert code == 1
    assert f"lost       sample {sample!r}: not finite: token 7, slot 1, channel 5 is NaN" in text
    failed = [line for line in read_ledger(root / "ledger" / "0000abcd.jsonl") if isinstance(line, Failed)]
    assert [(line.sample_id, line.kind) for line in failed] == [(sample, "damaged")]
    assert sample not in HiddenStateDataset(root).sample_ids


# -- who may be at work


def test_a_dataset_that_somebody_writes_to_is_not_repaired(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path
) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    scratch = tmp_path / "scratch"
    control = ControlFolder(scratch)
    scratch.mkdir(mode=0o700)
    control.create()

    def repair() -> int:
        return verify_command(VerifySettings(dataset=root, scratch=scratch, repair=True), stream=io.StringIO())

    alive = replace(MOVER, dst=str(tmp_path), heartbeat_s=now_s(), pid=os.getpid())
    with FixedRecord(control.mover_file) as record:
        record.write(asdict(alive))
        with pytest.raises(PreflightError, match="a mover stores to"):
            repair()
        record.write(asdict(replace(alive, dst=str(tmp_path / "elsewhere"))))
        assert repair() == 0
    with control.client_record("0000abcd") as record:
        record.write(asdict(replace(CLIENT, run="0000abcd")))
    fd = hold_claim(control, "0000abcd")
    with pytest.raises(PreflightError, match="run 0000abcd is at work"):
        repair()
    os.close(fd)
    assert repair() == 0


def test_books_that_a_writer_has_open_are_not_replaced_whatever_its_scratch(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path
) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    for book in (next((root / "ledger").glob("*.jsonl")), next((root / "manifest").glob("*.jsonl"))):
        with AppendLog(book), pytest.raises(PreflightError, match=f"somebody writes to .*{book.name}"):
            _run(root, repair=True)
    assert _run(root, repair=True)[0] == 0


def test_books_that_changed_since_they_were_verified_are_not_replaced(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path
) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    paths = DatasetPaths(root)
    info = paths.read_info()
    assert info is not None
    done = verify(paths, info)
    ledger = next(paths.ledger.glob("*.jsonl"))
    before = ledger.read_bytes()
    ledger.write_bytes(before + b"\n")
    with pytest.raises(PreflightError, match="changed while the dataset was verified"):
        repair(done, scratch=tmp_path, prompts=())
    ledger.write_bytes(before)
    paths.ledger_file("0000beef").touch()
    with pytest.raises(PreflightError, match="came or went while the dataset was verified"):
        repair(done, scratch=tmp_path, prompts=())
    paths.ledger_file("0000beef").unlink()
    assert not repair(done, scratch=tmp_path, prompts=()).changed


# -- the command line


def _cli(*words: str | Path) -> Ended:
    done = subprocess.run(
        [command("hs-client"), "verify", *map(str, words)], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stdout + done.stderr
    return Ended(done.returncode, done.stdout + done.stderr)


def test_the_command_line(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    ended = _cli(root, "--jobs", "2")
    assert (ended.code, "24 done, 24 verified" in ended.text) == (0, True), ended.text
    assert len(VerifiedSet.read(DatasetPaths(root))) == 24
    next(iter(sorted((root / "data").rglob("hs-*")))).write_bytes(b"")
    ended = _cli(root, "--json", "-")
    report = json.loads(ended.text[ended.text.index("{\n") : ended.text.rindex("}") + 1])
    assert (ended.code, report["exit_code"], report["verified"]) == (1, 1, 23)
    assert [finding["kind"] for finding in report["findings"]] == ["damaged file"]
    assert "damaged file: sample 'chat-0', data/" in ended.text
    assert ended.text.count(report["findings"][0]["where"]) == 2, "once in the report, once in its line"
    assert f"to mend    hs-client verify {root} --repair" in ended.text
    assert len(VerifiedSet.read(DatasetPaths(root))) == 23
    assert _cli(tmp_path).code == 3
    (root / "dataset.json").write_bytes(b"{")
    assert _cli(root).code == 3


def test_info_says_what_is_verified(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    assert "verified   never: hs-client verify" in info_lines(root)
    _run(root)
    assert any(
        line.startswith("verified   24 samples, 2") and line.endswith("books, checksums, values, set")
        for line in info_lines(root)
    )
    next(iter((root / "manifest").iterdir())).write_bytes(b"")
    assert any(line.startswith("broken     24 done samples") for line in info_lines(root))
    assert any(line.startswith("verified   0 samples") for line in info_lines(root))
    (root / "verified.json").write_bytes(b"{}")
    with pytest.raises(PreflightError, match=r"verified\.json"):
        list(info_lines(root))
    assert _run(root)[0] == 1  # which writes it anew
    assert len(VerifiedSet.read(DatasetPaths(root))) == 0


def test_findings_are_told_where_nothing_can_be_marked(
    clean: tuple[Path, Sequence[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    out = io.StringIO()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(DatasetPaths, "replace_verified", refuse)
    with pytest.raises(StorageError, match=r"verified\.json \(Read-only file system\): nothing is marked"):
        verify_command(VerifySettings(dataset=root, scratch=tmp_path), stream=out)
    assert "nothing is wrong" in out.getvalue()


def test_verifying_needs_no_torch(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    """The client is installed without it."""
    root = clean_copy(clean[0], tmp_path / "set")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; from hs_client.cli import cli; "
        f"cli(['verify', {str(root)!r}, '--repair', '--scratch', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "24 verified" in done.stdout) == (0, True), done.stdout + done.stderr


def test_wrong_use_is_told(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    root = clean_copy(clean[0], tmp_path / "set")
    with pytest.raises(UsageError, match="needs --model"):
        _run(root, sample=3)
    with pytest.raises(UsageError, match="for --repair"):
        _run(root, prompts=(root,))
    with pytest.raises(StorageError, match="cannot write the report"):
        _run(root, json=str(tmp_path / "nowhere" / "report.json"))
    with pytest.raises(PreflightError, match="cannot run"):
        _run(root, model=str(tmp_path / "no model"))


def test_a_dataset_without_samples_is_in_order(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [])
    code, text = _run(tmp_path / "set", repair=True)
    assert (code, "0 done, 0 verified" in text) == (0, True), text


def test_copies_of_other_ranks_need_no_file(clean: tuple[Path, Sequence[Record]], tmp_path: Path) -> None:
    """Writers ``all``: one rank's part is stored, the other's has a line that says it was equal."""
    _, records = clean
    paths = write_dataset(
        tmp_path / "set",
        records,
        info=dataset_info(num_layers=8, boundaries=list(BOUNDARIES), hidden_size=32),
        writers="all",
        expected_ranks=[0, 1],
    )
    lines = ManifestReader(paths.manifest).poll()
    copies = [
        msgspec.structs.replace(
            line, part=line.part.replace(".r00.", ".r01."), status="equal", path="", codec="", stored_bytes=0
        )
        for line in lines
    ]
    with AppendLog(paths.manifest_file("host-src")) as log:
        log.append(copies)
    code, text = _run(paths.root, repair=True)
    assert (code, "24 done, 24 verified" in text, "repaired   nothing" in text) == (0, True, True), text
