"""The case ``objectstore``: its figures from made timings, and its short form where rclone is installed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.front import main
from benchmarks.objectstore.report import plot, rates, table
from benchmarks.results import load


def _timing(raw: int, stored: int, cpu_s: float) -> dict[str, Any]:
    return {"files": 1, "raw_bytes": raw, "stored_bytes": stored, "wall_s": 1.0, "cpu_s": cpu_s}


def test_the_start_of_the_mover_is_taken_out_and_nothing_of_rclone(tmp_path: Path) -> None:
    arms = {
        "start of hs-mover": [_timing(0, 0, 0.5)],
        "hs-mover none": [_timing(2_000_000_000, 2_000_000_000, 1.5)],
        "rclone move": [_timing(2_000_000_000, 2_000_000_000, 4.0)],
    }
    assert rates(arms, "hs-mover none", "raw_bytes") == [2e9]
    assert rates(arms, "rclone move", "raw_bytes") == [0.5e9]
    record = {
        "valid": True,
        "parameters": {"rounds": 1, "rclone": "rclone v1"},
        "machine": {"cores": 2, "cpu": "x"},
        "timings": {"1 MB": arms},
    }
    assert "| 1 MB | hs-mover none | 2.000 | 2.000 | 100.0% | 1.0 |" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_objectstore_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "set and restored")
    assert main(["run", "objectstore", "--quick", "--sizes", "1 MB", "--out", str(tmp_path)]) == 0
    (path,) = (tmp_path / "objectstore").glob("*.json")
    record = load(path)
    assert record["valid"]
    arms = record["timings"]["1 MB"]
    assert len({arm[0]["raw_bytes"] for name, arm in arms.items() if name != "start of hs-mover"}) == 1
