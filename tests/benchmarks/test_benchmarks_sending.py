"""The sending case: how samples become tenths, and its short form with a real client."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.cases import find_case
from benchmarks.front import main
from benchmarks.results import load
from benchmarks.sending.report import Tenth, tenths


def test_tenths_count_from_the_first_request_and_are_cut_at_samples() -> None:
    samples = [(0.0, 0, 1.0, 40.0), (5.0, 0, 9.0, 90.0)]
    samples += [(5.0 + at, 10 * at, 9.0 + 0.01 * at, 90.0 + at) for at in range(1, 11)]
    found = tenths(samples, 100)
    assert [tenth.upto for tenth in found] == list(range(10, 101, 10))
    assert found[0] == Tenth(10, 10.0, 1000.0, 91.0)
    assert found[-1] == Tenth(100, 10.0, 1000.0, 100.0)


def test_a_run_shorter_than_its_samples_has_no_empty_tenths() -> None:
    assert tenths([], 10) == []
    assert [tenth.upto for tenth in tenths([(0.0, 0, 0.0, 1.0), (1.0, 7, 0.5, 1.0), (2.0, 10, 0.6, 1.0)], 10)] == [
        7,
        10,
    ]


@pytest.mark.slow
def test_sending_quick(tmp_path: Path) -> None:
    assert main(["run", "sending", "--quick", "--out", str(tmp_path)]) == 0
    (path,) = (tmp_path / "sending").glob("*.json")
    record = load(path)
    assert (record["valid"], record["exit_code"], record["summary"]["samples"]["done"]) == (True, 0, 2000)
    assert record["samples"][-1][1] <= 2000
    case = find_case("sending")
    assert "2,000 done" in case.table(record)
    case.plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
