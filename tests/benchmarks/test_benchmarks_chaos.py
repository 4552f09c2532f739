"""The chaos case: its schedules, its progress file, what it calls a fault; and its short form (about a minute)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.chaos.case import check, plot, table
from benchmarks.chaos.progress import Progress
from benchmarks.chaos.schedule import KILLS, SERVER_KILLS, Kind, draw_round
from benchmarks.front import main
from benchmarks.results import load
from hypothesis import given, strategies as st

from checker import Reference
from hs_formats.errors import UsageError
from tiny_models import tiny_model


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
