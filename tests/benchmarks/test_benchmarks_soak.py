"""The short form of the whole chain under watch: a minute of a real server, mover and client, verified in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benchmarks.front import main
from benchmarks.results import ResultFile, load
from benchmarks.soak.case import plot, table

_MB = 1_000_000


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.tmpfs
@pytest.mark.timeout(590)
def test_a_minute_of_the_chain(tmp_path: Path) -> None:
    argv = ["run", "soak", "--quick", "--only", "chain", "--size", "64m"]
    assert main([*argv, "--disk", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out" / "soak").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert record["problems"] == []
    chain = record["chain"]
    assert chain["done"] > 0
    watched = {key.partition(" ")[2] for key in chain["memory"]}
    assert {"mover", "client"} < watched
    assert any(name.startswith("server: ") for name in watched)
    assert all(rows for rows in chain["memory"].values())
    assert f"{chain['done']} samples done and verified" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def _chain(**more: Any) -> dict[str, Any]:
    rows = [[float(at), 50.0 * _MB] for at in range(12)]
    return {"memory": {"1 client": rows}, "growth": [], **more}


def test_a_part_is_a_result_of_its_own_and_one_cut_short_still_shows_its_memory(tmp_path: Path) -> None:
    file = ResultFile("soak", tmp_path, label="chain")
    body = {"label": "chain", "parameters": {"seconds": 3600.0}}
    record = load(file.save(body | {"chain": _chain()}, complete=False, problems=[]))
    assert not record["valid"]
    assert "verified" not in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()
    record = load(file.save(body | {"chain": _chain(done=7)}, complete=True, problems=[]))
    assert record["valid"]
    assert "3600 s, 7 samples done and verified" in table(record)
