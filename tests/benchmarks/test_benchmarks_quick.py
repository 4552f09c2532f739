"""The short form of the throughput case against a real server: shapes and counts, never times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.front import main
from benchmarks.results import load
from benchmarks.serving import Plugin
from benchmarks.throughput.arms import ArmResult
from benchmarks.throughput.case import _problems, plot, ratios, table


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
    assert len(none["again"]) == 2
    assert capture["again"] == []
    assert len(capture["ours"]) == len(capture["foreign"]) == 2
    (counters,) = capture["capture"]
    assert counters["failed"] == 0
    assert counters["files"] >= 32
    ratio = record["capture_ratio_graphs_off"]
    assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert "off" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def _arm(name: str, **samples: list[float]) -> ArmResult:
    plugin: Plugin = "none" if "none" in name else "capture"
    said: list[dict[str, Any]] = [{"capture_modules": 1 if plugin == "capture" else 0, "functions": {}}]
    capture = [{"failed": 0}] if plugin == "capture" else []
    return ArmResult(name=name, graphs=True, plugin=plugin, testimony=said, capture=capture, **samples)  # type: ignore[arg-type]


@pytest.mark.parametrize(("again", "figures", "valid"), [(1.04, True, True), (1.06, True, False), (9.0, False, True)])
def test_prompts_that_are_faster_when_sent_again_make_a_run_invalid(again: float, figures: bool, valid: bool) -> None:
    assert (_problems(_arm("on-none", again=[100.0, 100.0 * again]), figures=figures) == []) == valid


def test_source_mode_has_ratios_of_its_own() -> None:
    none = _arm("on-none", foreign=[100.0, 100.0], decode_tokens_per_s=[5.0])
    source = _arm("source", ours=[80.0, 80.0], foreign=[90.0, 90.0], decode_tokens_per_s=[5.0])
    found = ratios({"on-none": none, "source": source})
    assert found["source_ratio"].value == pytest.approx(80 / 90)
    assert found["source_total_ratio"].value == pytest.approx(0.8)
    assert "capture_ratio" not in found
    assert _problems(source, figures=True) == []
