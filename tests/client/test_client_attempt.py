"""Attempts, history, queue, ledger groups: the client's state without a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given, strategies as st

from hs_client.admission import RecordCost
from hs_client.attempt import Answer, Attempt, Phase, judge_answer
from hs_client.history import read_history
from hs_client.ledger_log import LedgerLog
from hs_client.prepare import Prepared
from hs_client.prune_command import find_orphans
from hs_client.rows import digest
from hs_client.work import Item, WorkQueue
from hs_formats.control import ControlFolder, RunState
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.hashing import ids_xxh3
from hs_formats.index import DatasetIndex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, Rejected, read_ledger
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid

RID = "hs-0000000a-00000000-00"
COST = RecordCost(bytes_per_token=96, copies=1, ranks=1, chunk_tokens=16)


def _attempt(n: int) -> Attempt:
    ids = np.arange(n, dtype=np.int32)
    sample = Prepared("s", "f:1", ids, [(0, n)], ids_xxh3(list(range(n))))
    attempt = Attempt(RID, sample, 0, COST, "first", [0], phase=Phase.ANSWERED)
    attempt.deadline_s = 10.0
    return attempt


def _line(start: int, stop: int, n: int, *, status: str = "stored", ids: list[int] | None = None) -> ManifestLine:
    held = list(range(start, stop)) if ids is None else ids
    return ManifestLine(
        part=str(PartName(Rid.parse(RID), start, stop, n, 0)),
        status=status,  # type: ignore[arg-type]
        path="p",
        raw_bytes=1,
        stored_bytes=1,
        codec="none",
        ids_xxh3=ids_xxh3(held),
    )


@given(st.integers(1, 60), st.data())
def test_any_order_of_parts_and_lines_ends_in_done_exactly_when_all_are_stored(n: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=4))) if n > 1 else []
    ranges = list(zip([0, *cuts], [*cuts, n], strict=True))
    events = data.draw(st.permutations([(kind, r) for kind in ("part", "line") for r in ranges]))
    attempt = _attempt(n)
    lines, last_promise = 0, attempt.promised_bytes()
    assert last_promise == COST.record(n)
    for kind, (start, stop) in events:
        if kind == "part":
            attempt.note_part(PartName(Rid.parse(RID), start, stop, n, 0))
        else:
            assert attempt.note_line(_line(start, stop, n))
            assert not attempt.note_line(_line(start, stop, n))
            lines += 1
        assert attempt.promised_bytes() <= last_promise
        last_promise = attempt.promised_bytes()
        verdict = attempt.verdict(0.0, ())
        assert (verdict is not None and verdict.done) == (lines == len(ranges))
    assert last_promise == 0


def test_only_missing_rows_run_into_the_deadline() -> None:
    attempt = _attempt(20)
    attempt.note_part(PartName(Rid.parse(RID), 0, 16, 20, 0))
    assert attempt.verdict(9.0, {(0, 0, 16)}) is None
    verdict = attempt.verdict(11.0, {(0, 0, 16)})
    assert verdict is not None
    assert verdict.reason == "hook silent: rows [16, 20) of 20 never appeared"
    attempt.note_part(PartName(Rid.parse(RID), 16, 20, 20, 0))
    assert attempt.verdict(11.0, {(0, 0, 16), (0, 16, 20)}) is None, "the mover may take as long as it likes"
    gone = attempt.verdict(11.0, {(0, 0, 16)})
    assert gone is not None
    assert "were removed" in gone.reason


def test_other_ids_and_quarantined_parts_fail() -> None:
    attempt = _attempt(20)
    attempt.note_line(_line(0, 16, 20))
    attempt.note_line(_line(16, 20, 20, ids=[1, 2, 3, 4]))
    verdict = attempt.verdict(0.0, ())
    assert verdict is not None
    assert verdict.kind == "other ids"
    attempt = _attempt(20)
    attempt.note_line(_line(0, 16, 20, status="quarantined"))
    verdict = attempt.verdict(0.0, ())
    assert verdict is not None
    assert verdict.kind == "quarantined"


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer("length", "", 5, 0), ""),
        (Answer("stop", "", 5, 0), ""),
        (Answer("abort", "too long", 5, 0), "aborted"),
        (Answer("length", "", 4, 0), "prompt changed"),
        (Answer("length", "", 5, 1), "cached tokens"),
        (Answer("length", "", -1, -1), "prompt changed"),
    ],
)
def test_the_answer_must_fit(answer: Answer, kind: str) -> None:
    assert judge_answer(answer, 5).kind == kind


def _intent(sample: str, rid: str) -> Intent:
    return Intent(sample_id=sample, rid=rid, n=1, ids_xxh3=ids_xxh3([1]), mask=[(0, 1)])


def _write(path: Path, lines: Sequence[LedgerLine], torn: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with AppendLog(path) as log:
        log.append(lines)
    with path.open("ab") as file:
        file.write(torn)


def test_history_joins_the_ledgers_of_all_runs(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    rid = "hs-0000000{}-0000000{}-00"
    _write(
        paths.ledger_file("00000001"),
        [
            *(_intent(name, rid.format(1, at)) for at, name in enumerate("abcde")),
            Done(sample_id="a", rid=rid.format(1, 0)),
            Failed(sample_id="b", rid=rid.format(1, 1), kind="x", reason="y"),
            Rejected(sample_id="z", row="f:9", reason="too long"),
            Rejected(sample_id="", row="f:10", reason="id 'c' is taken"),
        ],
        torn=b'{"type":"done","sample_id":"e"',
    )
    _write(paths.ledger_file("00000002"), [_intent("c", rid.format(2, 0)), Done(sample_id="c", rid=rid.format(2, 0))])
    _write(paths.ledger_file("00000003"), [_intent("d", rid.format(3, 0))])
    history = read_history(paths, live_runs={"00000003"})
    assert {name for name in "abcdez" if digest(name) in history.done} == {"a", "c"}
    assert len(history.done) == 2
    assert history.rejected == {digest("z"): "too long"}
    assert {key: [intent.rid for intent in intents] for key, intents in history.open.items()} == {
        digest("d"): [rid.format(1, 3)],
        digest("e"): [rid.format(1, 4)],
    }
    assert history.open_runs == {"00000001"}
    assert history.runs == {"00000001", "00000002", "00000003"}


@pytest.mark.anyio
async def test_lines_that_wait_together_share_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0

    def sync(log: AppendLog) -> None:
        nonlocal syncs
        syncs += 1

    monkeypatch.setattr(AppendLog, "sync", sync)
    ledger = LedgerLog(tmp_path / "l.jsonl", timeout_s=5)
    async with anyio.create_task_group() as group:
        group.start_soon(ledger.serve)
        async with anyio.create_task_group() as writers:
            for at in range(50):
                writers.start_soon(ledger.commit, _intent(f"s{at}", f"hs-00000001-{at:08d}-00"))
        group.cancel_scope.cancel()
    ledger.close()
    assert len(read_ledger(tmp_path / "l.jsonl")) == 50
    assert syncs <= 3


@pytest.mark.anyio
async def test_a_ledger_whose_folder_comes_back_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    ledger = LedgerLog(folder / "l.jsonl", timeout_s=20)
    async with anyio.create_task_group() as group:
        group.start_soon(ledger.serve)
        await ledger.commit(_intent("a", "hs-00000001-00000000-00"))
        folder.rename(tmp_path / "away")
        async with anyio.create_task_group() as writer:
            writer.start_soon(ledger.commit, _intent("b", "hs-00000001-00000001-00"))
            await anyio.sleep(0.3)
            assert "cannot be written" in ledger.trouble
            (tmp_path / "away").rename(folder)
        group.cancel_scope.cancel()
    ledger.close()
    assert not ledger.trouble
    assert len(read_ledger(folder / "l.jsonl")) == 2


@pytest.mark.anyio
async def test_the_queue_ends_when_all_is_settled() -> None:
    queue = WorkQueue(capacity=2)
    sample = _attempt(1).sample
    items = [Item(sample, row) for row in range(6)]
    taken: list[int] = []

    async def work() -> None:
        while (item := await queue.get()) is not None:
            taken.append(item.row)
            if item.row == 3 and item.attempt == 0:
                item.attempt = 1
                queue.again(item)
            else:
                queue.settle(item)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        group.start_soon(work)
        await queue.put(items)
        queue.end_input()
        await queue.wait_finished()
    assert sorted(taken) == [0, 1, 2, 3, 3, 4, 5]


def test_prune_finds_what_no_sample_needs(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path / "d")
    paths.create()
    paths.write_info(
        DatasetInfo(
            model="m", config_hash="c", num_layers=4, boundaries=[1], dtype="float32", hidden_size=8,
            tokenizer="t", tokenizer_hash="", template_hash="",
        )
    )  # fmt: skip
    rids = {name: f"hs-00000001-0000000{at}-00" for at, name in enumerate(["won", "second", "failed", "open", "alien"])}
    lines = []
    for name, rid in rids.items():
        part = PartName(Rid.parse(rid), 0, 1, 1, 0)
        stored = paths.root / paths.stored_name(part, ".pt")
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(b"x" * 10)
        lines.append(
            ManifestLine(
                part=str(part), status="stored", path=str(stored.relative_to(paths.root)), raw_bytes=1, stored_bytes=1,
                codec="none", ids_xxh3=name,
            )
        )  # fmt: skip
    with AppendLog(paths.manifest_file("m")) as log:
        log.append(lines)
    _write(
        paths.ledger_file("00000001"),
        [
            _intent("a", rids["won"]),
            _intent("a", rids["second"]),
            _intent("b", rids["failed"]),
            _intent("c", rids["open"]),
            Done(sample_id="a", rid=rids["won"]),
            Failed(sample_id="b", rid=rids["failed"], kind="x", reason="y"),
        ],
    )
    os.utime(paths.ledger_file("00000001"), (0, 0))
    (tmp_path / "unclaimed" / "0000000b").mkdir(parents=True)
    (tmp_path / "unclaimed" / "0000000b" / "x.pt").write_bytes(b"y")
    found = {orphan.path.name[:23]: orphan.why for orphan in find_orphans(paths.root, tmp_path / "scratch")}
    assert found == {
        rids["second"]: "of another attempt at a sample that is done",
        rids["failed"]: "of a failed attempt",
        rids["alien"]: "of a request that no ledger knows",
        "x.pt": "of a run that nobody claimed",
    }
    # Its scratch is another one, and its client wrote a moment ago: it may be at work.
    os.utime(paths.ledger_file("00000001"))
    assert [orphan.path.name for orphan in find_orphans(paths.root, tmp_path / "scratch")] == ["x.pt"]
    control = ControlFolder(tmp_path / "scratch")
    control.create()
    control.register_run(RunState(run="00000001", dataset="d", pid=1))
    assert len(find_orphans(paths.root, tmp_path / "scratch")) == 4


def test_prune_spares_what_a_run_adds_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = DatasetPaths(tmp_path / "d")
    paths.create()
    paths.write_info(
        DatasetInfo(
            model="m", config_hash="c", num_layers=4, boundaries=[1], dtype="float32", hidden_size=8,
            tokenizer="t", tokenizer_hash="", template_hash="",
        )
    )  # fmt: skip
    rid = "hs-0000000a-00000000-00"
    part = PartName(Rid.parse(rid), 0, 1, 1, 0)
    stored = paths.root / paths.stored_name(part, ".pt")

    def add() -> None:
        stored.parent.mkdir(parents=True)
        stored.write_bytes(b"x")
        _write(paths.ledger_file("0000000a"), [_intent("a", rid), Done(sample_id="a", rid=rid)])
        line = ManifestLine(
            part=str(part), status="stored", path=str(stored.relative_to(paths.root)), raw_bytes=1, stored_bytes=1,
            codec="none",
        )  # fmt: skip
        with AppendLog(paths.manifest_file("m")) as log:
            log.append([line])

    load = DatasetIndex.load

    def slow(found: DatasetPaths) -> DatasetIndex:
        index = load(found)
        add()
        return index

    monkeypatch.setattr(DatasetIndex, "load", slow)
    assert find_orphans(paths.root, tmp_path / "scratch") == []
    assert stored.exists()


def test_only_what_the_index_calls_whole_or_broken_by_its_own_fault_is_done(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    one, two = (f"hs-0000000{run}-00000000-00" for run in (1, 2))
    late, lost = "hs-00000001-00000001-00", "hs-00000001-00000002-00"
    adopted = Done(sample_id="adopted", rid="hs-00000002-00000003-00", adopted=True)
    _write(
        paths.ledger_file("00000001"),
        [
            _intent("twice", one),
            Done(sample_id="twice", rid=one, content=f"{0xA:016x}"),
            _intent("late", late),
            Failed(sample_id="late", rid=late, kind="x", reason="y"),
            Done(sample_id="late", rid=late, adopted=True),
            Done(sample_id="lost", rid=lost),
            adopted,
        ],
    )
    _write(
        paths.ledger_file("00000002"),
        [
            _intent("twice", two),
            Done(sample_id="twice", rid=two, content=f"{0xB:016x}"),
            _intent("adopted", adopted.rid),
        ],
    )
    history = read_history(paths)
    assert {name for name in ("twice", "late", "lost", "adopted") if digest(name) in history.done} == {
        *("twice", "late", "adopted")
    }
    assert history.done.get(digest("twice")) == 0xA, "the record that counts is the first one's"
    assert not history.open


def test_manifests_are_synced_before_a_done_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    (tmp_path / "m.jsonl").touch()
    (tmp_path / "ledger").mkdir()
    ledger = LedgerLog(tmp_path / "ledger" / "l.jsonl", timeout_s=5, manifests=tmp_path)
    ledger.write_now([_intent("a", "hs-00000001-00000000-00")])
    ledger.write_now([Done(sample_id="a", rid="hs-00000001-00000000-00")])
    ledger.close()
    assert synced == ["l.jsonl", "m.jsonl", "l.jsonl"]
