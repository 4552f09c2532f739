"""The short form of the reader case: it compares all that it reads, and its table and plot can be made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from benchmarks.front import main
from benchmarks.reader import measure
from benchmarks.reader.case import plot, table
from benchmarks.results import load


def test_reader_quick(tmp_path: Path) -> None:
    assert main(["run", "reader", "--quick", "--out", str(tmp_path / "out"), "--work", str(tmp_path)]) == 0
    (path,) = (tmp_path / "out" / "reader").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert not record["times_mean_something"]
    assert set(record["stored_bytes"]) == {"default", "fast", "zstd", "none", "pt", "ckpt.gz"}
    assert record["stored_bytes"]["default"] < record["stored_bytes"]["ckpt.gz"] < record["stored_bytes"]["pt"]
    assert all(len(seconds["cpu_s"]) == 1 for seconds in record["arms"].values())
    assert len(table(record).splitlines()) == 4 + len(record["arms"])
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_comes_back_otherwise_is_a_problem() -> None:
    samples = [torch.full((2, 3, 4), float(at), dtype=torch.bfloat16) for at in range(3)]
    same = [(at, states.clone()) for at, states in enumerate(samples)]
    assert list(measure._compare("x", same, samples)) == []
    assert list(measure._compare("x", [(at, s[:, -1:]) for at, s in same], samples)) == []
    assert list(measure._compare("x", same[:2], samples)) == ["x: 2 of 3 samples came"]
    same[1][1][1, 2, 3] = 7
    assert list(measure._compare("x", same, samples)) == ["x: sample 1 comes back otherwise"]
    with pytest.raises(SystemExit):
        main(["run", "reader", "--rounds", "many"])
