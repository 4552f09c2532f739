"""The short form of the throughput case against a real server: shapes and counts, never times."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.front import main
from benchmarks.results import load
from benchmarks.throughput.case import plot, table


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(290)
def test_throughput_quick(tmp_path: Path) -> None:
    argv = ["run", "throughput", "--quick", "--profile", "cpu", "--port", "24700"]
    assert main([*argv, "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work")]) == 0
    (path,) = (tmp_path / "out" / "throughput").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert record["complete"]
    assert not record["times_mean_something"]
    none, capture = record["arms"]["off-none"], record["arms"]["off-capture"]
    assert (none["capture"], none["captured_requests"], len(none["foreign"])) == ([], 0, 2)
    assert capture["captured_requests"] == 32
    assert len(capture["ours"]) == len(capture["foreign"]) == 2
    (counters,) = capture["capture"]
    assert counters["failed"] == 0
    assert counters["files"] >= 32
    ratio = record["capture_ratio_graphs_off"]
    assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert "off" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
