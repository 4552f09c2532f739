"""`run all`: every case gets its turn, and what did not run is said. And short forms that have no file of their own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from benchmarks import front
from benchmarks.cases import NAMES, find_case
from benchmarks.front import main
from benchmarks.machine import NotHere
from benchmarks.results import ResultFile, load

from hs_formats.errors import HsError, ServerLost, UsageError

_Ending = HsError | AssertionError | str | None


class _Case:
    """A case that ends as it is told."""

    QUESTION = "Does it end as it is told?"

    def __init__(self, name: str, ending: _Ending) -> None:
        self.name, self.ending = name, ending
        self.ran: list[argparse.Namespace] = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--own", default="of the case")

    def run(self, options: argparse.Namespace) -> Path:
        self.ran.append(options)
        if isinstance(self.ending, Exception):
            raise self.ending
        problems = [self.ending] if self.ending else []
        return ResultFile(self.name, options.out, quick=options.quick).save({}, complete=True, problems=problems)

    def table(self, record: dict[str, Any]) -> str:
        return f"table of {record['case']}"

    def plot(self, record: dict[str, Any], path: Path) -> None:
        raise AssertionError("nothing is plotted by `run`")


def _all(
    monkeypatch: pytest.MonkeyPatch, out: Path, endings: dict[str, _Ending], *argv: str
) -> tuple[int, dict[str, _Case]]:
    cases = {name: _Case(name, ending) for name, ending in endings.items()}
    monkeypatch.setattr(front, "NAMES", tuple(cases))
    monkeypatch.setattr(front, "find_case", cases.__getitem__)
    return main(["run", "all", "--out", str(out), *argv]), cases


def test_all_goes_on_after_a_failure_and_ends_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings: dict[str, _Ending] = {
        "good": None,
        "gone": ServerLost("the server died\n  see its log"),
        "elsewhere": NotHere("no GPU here"),
        "bad": "a request failed",
        "helpless": AssertionError("the mover did not start"),
        "last": None,
    }
    code, cases = _all(monkeypatch, tmp_path, endings, "--quick")
    assert code == ServerLost.exit_code
    assert all(len(case.ran) == 1 and case.ran[0].quick and case.ran[0].own == "of the case" for case in cases.values())
    captured = capsys.readouterr()
    assert "see its log" in captured.err
    lines = captured.out.splitlines()[-6:]
    assert [line.split()[:2] for line in lines] == [
        ["good", "done"],
        ["gone", "FAILED:"],
        ["elsewhere", "SKIPPED:"],
        ["bad", "FAILED:"],
        ["helpless", "FAILED:"],
        ["last", "done"],
    ]
    assert lines[2].endswith("no GPU here")
    assert "1 problems, the first: a request failed" in lines[3]
    (bad,) = (tmp_path / "bad").glob("*.json")
    assert not load(bad)["valid"]


def test_what_must_be_told_more_is_skipped_in_the_long_form_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    endings: dict[str, _Ending] = {"one": UsageError("name a model"), "two": None, "three": None}
    code, cases = _all(monkeypatch, tmp_path, endings, "--skip", "three")
    assert (code, cases["three"].ran) == (0, [])
    assert "SKIPPED: name a model" in capsys.readouterr().out
    code, _ = _all(monkeypatch, tmp_path, endings, "--quick", "--skip", "three")
    assert code == UsageError.exit_code


def test_a_run_with_problems_fails_whatever_its_case_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(front, "NAMES", ("bad",))
    monkeypatch.setattr(front, "find_case", {"bad": _Case("bad", "it is off")}.__getitem__)
    assert main(["run", "bad", "--out", str(tmp_path)]) == 1
    assert "the run is invalid, 1 problems, the first: it is off" in capsys.readouterr().err


def _quick(name: str, out: Path, *argv: str) -> dict[str, Any]:
    assert main(["run", name, "--quick", *argv, "--out", str(out)]) == 0
    (path,) = (out / name).glob("*.json")
    record = load(path)
    assert record["valid"]
    assert record["quick"]
    case = find_case(name)
    assert case.table(record)
    case.plot(record, out / "plot.png")
    assert (out / "plot.png").read_bytes().startswith(b"\x89PNG")
    return record


@pytest.mark.slow
def test_mover_quick(tmp_path: Path) -> None:
    record = _quick("mover", tmp_path, "--disk", str(tmp_path), "--sizes", "0.1 MB")
    arms = record["timings"]["0.1 MB"]
    assert all(len(timings) == 1 for timings in arms.values())
    assert arms["hs-mover default"][0]["stored_bytes"] < arms["hs-mover none"][0]["stored_bytes"]


@pytest.mark.slow
def test_scaling_quick(tmp_path: Path) -> None:
    record = _quick("scaling", tmp_path, "--disk", str(tmp_path))
    assert set(record["rows"]) == {
        *("history", "manifest", "index", "reader", "mover start", "status", "info", "verify")
    }
    for rows in record["rows"].values():
        assert [row["seen"] for row in rows] == [row["rows"] for row in rows] == [200, 1000]
    assert all(row["files"] >= 2 for what in ("size", "backlog", "threads") for row in record["parts"][what])
    assert [row["clients"] for row in record["clients"]] == [1, 2, 4]
    assert all(row["grants"] == row["clients"] * (50 // row["clients"]) for row in record["clients"])


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.tmpfs
@pytest.mark.timeout(590)
def test_stall_quick(tmp_path: Path) -> None:
    where = ["--port", "24800", "--scratch", str(tmp_path / "s"), "--work", str(tmp_path / "work")]
    counts = _quick("stall", tmp_path, "--profile", "cpu", "--seconds", "10", *where)["counts"]
    assert counts["lost"] == 0
    assert counts["given_up"] > 0
    assert counts["complete"] > 0
    assert counts["complete"] + counts["given_up"] + 2 == counts["ours"]  # two are sent when there is space again


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(590)
def test_equality_quick(tmp_path: Path) -> None:
    where = ["--port", "24900", "--scratch", str(tmp_path / "s"), "--work", str(tmp_path / "work")]
    record = _quick("equality", tmp_path, "--profile", "cpu", *where)
    assert record["comparisons"]
    assert all(item["records"] == 12 for item in record["comparisons"])


def test_every_case_is_a_package_with_a_result_folder_of_its_name() -> None:
    for name in NAMES:
        assert find_case(name).__name__ == f"benchmarks.{name}.case"  # type: ignore[attr-defined]
