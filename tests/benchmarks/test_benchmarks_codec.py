"""The short form of the codec case: shapes and sizes, never times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.codec.case import plot, table
from benchmarks.codec.measure import drawn
from benchmarks.front import main
from benchmarks.results import load


def test_codec_quick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "codec", "--quick", "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out" / "codec").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert not record["times_mean_something"]
    assert list(record["candidates"])[:5] == ["default", "fast", "zstd -1", "zstd -3", "gzip -6"]
    said = capsys.readouterr().err
    assert all(f"SKIPPED: {name} is not compared: " in said for name in record["missing"])
    for candidate in record["candidates"].values():
        assert len(candidate["ratios"]) == 5
        assert len(candidate["encode_s"]) == len(candidate["decode_s"]) == 2
        assert all(ratio > 1 for ratio in candidate["ratios"].values())
    assert "| default | 1.4" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_drawn_tensor_is_like_its_samples() -> None:
    scales = np.array([1.0, 8.0, 0.25, 100.0], np.float32)
    values = np.random.default_rng(1).normal(0, 1, (400, 4)).astype(np.float32) * scales
    sample = (values.view(np.uint32) >> 16).astype(np.uint16)
    words = drawn([sample], (3000, 2, 8))
    again = (words.astype(np.uint32) << 16).view(np.float32)
    for slot in range(2):
        found = sorted(np.median(np.abs(again[:, slot]), axis=0).tolist())
        known = sorted([*np.median(np.abs(values), axis=0).tolist()] * 2)
        assert found == pytest.approx(known, rel=0.5)
