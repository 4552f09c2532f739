"""`hs-client info`: one screen, also of a dataset that many runs have made."""

from __future__ import annotations

from pathlib import Path

from hs_client.info_command import info_lines
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Rejected, RunStarted
from part_factory import random_record, write_dataset


def test_it_fits_a_screen(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(row, 5 + row) for row in range(3)])
    for day in range(1, 29):
        run = f"{999 - day:08x}"  # ids do not follow the time
        with AppendLog(paths.ledger_file(run)) as log:
            at = f"2026-02-{day:02}T00:00:00Z"
            log.append([RunStarted(run=run, started_at=at, inputs=["a.jsonl", "b.jsonl"], servers=[], version="0")])
            log.append([Rejected(sample_id="x", row="p:1", reason="no")] * day)
    lines = list(info_lines(paths.root))
    assert len(lines) <= 24
    assert lines[4] == "samples    3 done, 3 parts"
    assert "runs       19 earlier ones, and the newest: hs-client report has all" in lines
    assert lines[-1] == "run        000003cb  2026-02-28T00:00:00Z, a.jsonl, b.jsonl: 28 rejected"
    assert lines[-10].startswith("run        000003d4  2026-02-19T")


def test_few_runs_are_all_there(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(0, 5), random_record(1, 5, run="0000abce")])
    lines = list(info_lines(paths.root))
    assert [line[:19] for line in lines if line.startswith("run")] == ["run        0000abcd", "run        0000abce"]
