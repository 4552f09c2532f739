"""The resume case in its short form, with a real client and mover (some 25 s)."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.cases import find_case
from benchmarks.front import main
from benchmarks.results import load

pytestmark = pytest.mark.slow


def test_a_resume_parses_nothing_and_finds_what_is_left(tmp_path: Path) -> None:
    assert main(["run", "resume", "--quick", "--tokens", "20", "--out", str(tmp_path)]) == 0
    (path,) = (tmp_path / "resume").glob("*.json")
    record = load(path)
    assert record["valid"]
    new, resumed, without = record["runs"].values()
    assert any(line.startswith("rows       6000: 0 done, 6000 to send") for line in new["said"])
    for run in (resumed, without):
        assert any(line.startswith("rows       6000: 5940 done, 60 to send") for line in run["said"])
    assert record["parameters"]["cache_bytes"] > 6000 * 48
    text = find_case("resume").table(record)
    assert "| resumed |" in text
    find_case("resume").plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
