"""The short form of the client case: every arm answers, the table and the plot are made; no times."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.client.case import ARMS, plot, table
from benchmarks.front import main
from benchmarks.results import load


@pytest.mark.slow
def test_client_quick(tmp_path: Path) -> None:
    assert main(["run", "client", "--quick", "--out", str(tmp_path)]) == 0
    (path,) = (tmp_path / "client").glob("*.json")
    record = load(path)
    assert (record["valid"], record["problems"], record["times_mean_something"]) == (True, [], False)
    found = {key.split(" ")[2] for key in record["arms"]}
    assert found == {arm for arm in ARMS if arm.removeprefix("ours-") not in record["missing"]} - set(record["missing"])
    assert {"ours", "httpx-pool", "httpx-pool-tuned"} <= found
    assert all(arm["requests"] > 0 and arm["cpu_us"] > 0 for arm in record["arms"].values())
    assert table(record).count("| hs-client, httpx |") == len({key.split(" ")[0] for key in record["arms"]})
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
