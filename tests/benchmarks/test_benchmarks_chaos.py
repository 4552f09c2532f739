"""The chaos case: its schedules, its progress file, what it calls a fault; and its short form (about a minute)."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.chaos.case import check, plot, table
from benchmarks.chaos.progress import Progress
from benchmarks.chaos.schedule import KILLS, SERVER_KILLS, Kind, draw_round
from benchmarks.front import main
from benchmarks.results import load
from hypothesis import given, strategies as st

from checker import Reference
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import UsageError
from hs_formats.names import Rid
from part_factory import Record, dataset_info, write_dataset
from tiny_models import HIDDEN_SIZE, tiny_model


@given(st.integers(0, 1 << 40), st.integers(0, 5000), st.booleans())
def test_a_round_repeats_and_keeps_to_its_bounds(seed: int, number: int, quick: bool) -> None:
    planned = draw_round(seed, number, quick=quick)
    assert planned == draw_round(seed, number, quick=quick)
    moments = [event.at_row for event in planned.events]
    assert moments == sorted(moments)
    assert 0 <= moments[0] <= moments[-1] < planned.rows
    assert all(0 <= event.delay_s < 1 and 0 < event.hold_s <= 6 for event in planned.events)
    assert not quick or not {event.kind for event in planned.events} & set(SERVER_KILLS)


def test_a_thousand_kills_have_every_kind_and_sixty_servers() -> None:
    kinds: Counter[Kind] = Counter()
    number = 0
    while sum(KILLS.get(kind, 0) * count for kind, count in kinds.items()) < 1000:
        kinds.update(event.kind for event in draw_round(1, number).events)
        number += 1
    assert sum(kinds[kind] for kind in SERVER_KILLS) >= 60
    assert min(kinds.values()) >= 10
    assert len(kinds) == 13
    assert draw_round(1, 0) != draw_round(1, 1) != draw_round(2, 1)


def test_progress_adds_up_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "chaos" / "seed-3.json"
    progress = Progress.load(path, 3)
    for problems in ([], ["round 1: lost: x"]):
        progress.add(
            kills={"client": 2, "server": 1}, events={"kill client": 2}, endings={"5": 1}, rows=10, orphans=1,
            largest=1e-6, seconds=2.0, problems=problems,
        )  # fmt: skip
        progress.save(path)
    again = Progress.load(path, 3)
    assert again == progress
    assert (again.killed, again.rows, again.kills["server"], len(again.rounds)) == (6, 20, 2, 2)
    assert again.problems == ["round 1: lost: x"]
    with pytest.raises(UsageError, match="not the progress of seed 4"):
        Progress.load(path, 4)
    for damaged in (b"", b"[]", b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match="--progress"):
            Progress.load(path, 3)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.tmpfs
@pytest.mark.timeout(290)
def test_chaos_quick(tmp_path: Path) -> None:
    assert main(["run", "chaos", "--quick", "--seed", "5", "--out", str(tmp_path)]) == 0
    (path,) = (tmp_path / "chaos").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert record["problems"] == []
    assert record["rows"] == 80
    assert sum(record["kills"].values()) >= 1
    assert "server" not in record["kills"]
    assert "equal to transformers | 80 |" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    dataset = tmp_path / "round-7"
    (dataset / "ledger").mkdir(parents=True)
    prompts = tmp_path / "round-7.jsonl"
    prompts.write_text(json.dumps({"id": "a", "input_ids": [3, 4]}) + "\n")
    report, faults = check(dataset, prompts, Reference(tiny_model("tiny-llama"), (1, 4, 7)), 7)
    assert (report.good, report.rows) == (0, 1)
    assert faults == ["round 7: lost: round-7.jsonl:1 'a': not done"]


RUN = "0000abcd"


def _parts(paths: DatasetPaths, row: int = 0) -> list[Path]:
    return sorted((paths.data / RUN).rglob(f"hs-{RUN}-{row:08d}-*"))


def _unlink_a_part(paths: DatasetPaths) -> None:
    _parts(paths)[1].unlink()


def _unlink_a_record(paths: DatasetPaths) -> None:
    for path in _parts(paths):
        path.unlink()


def _cut_a_part(paths: DatasetPaths) -> None:
    path = _parts(paths)[0]
    path.write_bytes(path.read_bytes()[:-7])


def _leave_a_temporary(paths: DatasetPaths) -> None:
    path = _parts(paths)[0]
    shutil.copy(path, path.with_name(f".{path.name}.host-src.tmp"))


def _move_a_part(paths: DatasetPaths) -> None:
    path = _parts(paths)[0]
    path.rename(path.with_name(path.name.replace("00000000-00.t", "00000000-01.t")))


def _forget_a_done_line(paths: DatasetPaths) -> None:
    ledger = paths.ledger_file(RUN)
    lines = ledger.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"done"' not in line or b'"r0"' not in line]
    assert len(kept) == len(lines) - 1
    ledger.write_bytes(b"".join(kept))


def _quarantine_a_part(paths: DatasetPaths) -> None:
    paths.quarantine.mkdir()
    (paths.quarantine / _parts(paths)[0].name).write_bytes(b"half")


Spoil = Callable[[list[Record]], list[Record]]


def _twice(records: list[Record]) -> list[Record]:
    return [*records, replace(records[0], rid=Rid("0000abce", 0, 0))]


def _exchanged(records: list[Record]) -> list[Record]:
    one, other = (replace(records[at], states=records[1 - at].states) for at in (0, 1))
    return [one, other, *records[2:]]


def _shifted(records: list[Record]) -> list[Record]:
    return [replace(records[0], states=records[0].states.roll(1, 0)), *records[1:]]


def _of_no_row(records: list[Record]) -> list[Record]:
    return [*records, replace(records[0], sample_id="x", rid=Rid(RUN, 99, 0))]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference(tiny_model("tiny-llama"), (1, 4, 7))


def _checked(
    folder: Path, reference: Reference, spoil: Spoil = list, harm: Callable[[DatasetPaths], None] = lambda _: None
) -> list[str]:
    """The faults of a round of three rows of equal length, each in two parts, that was spoiled."""
    rows = [tuple(range(10 + 20 * row, 22 + 20 * row)) for row in range(3)]
    prompts = folder / "round-7.jsonl"
    prompts.write_text("".join(json.dumps({"id": f"r{row}", "input_ids": ids}) + "\n" for row, ids in enumerate(rows)))
    records = [
        Record(sample_id=f"r{row}", rid=Rid(RUN, row, 0), ids=ids, states=reference.states(ids), cuts=[5])
        for row, ids in enumerate(rows)
    ]
    info = dataset_info(boundaries=[1, 4, 7], hidden_size=HIDDEN_SIZE)
    paths = write_dataset(folder / "round-7", spoil(records), info=info)
    harm(paths)
    return check(paths.root, prompts, reference, 7)[1]


def test_a_good_round_has_no_fault(tmp_path: Path, reference: Reference) -> None:
    assert _checked(tmp_path, reference) == []


@pytest.mark.parametrize(
    ("harm", "kinds"),
    [
        (_unlink_a_part, {"partial"}),
        (_unlink_a_record, {"lost"}),
        (_forget_a_done_line, {"lost"}),
        (_cut_a_part, {"damaged", "partial"}),
        (_move_a_part, {"damaged", "partial"}),
        (_leave_a_temporary, {"damaged"}),
        (_quarantine_a_part, {"quarantined"}),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_harm_to_files_and_books_is_found(
    tmp_path: Path, reference: Reference, harm: Callable[[DatasetPaths], None], kinds: set[str]
) -> None:
    faults = _checked(tmp_path, reference, harm=harm)
    assert {fault.split(": ")[1] for fault in faults} == kinds
    assert all(fault.startswith("round 7: ") for fault in faults)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [(_twice, "doubled"), (_exchanged, "swapped"), (_shifted, "wrong"), (_of_no_row, "unexpected")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_records_that_are_wrong_are_found(tmp_path: Path, reference: Reference, spoil: Spoil, kind: str) -> None:
    assert {fault.split(": ")[1] for fault in _checked(tmp_path, reference, spoil=spoil)} == {kind}
