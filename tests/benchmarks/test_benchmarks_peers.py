"""The peers: who takes part, how results of several runs add up, and the short form against real servers."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import machine
from benchmarks.front import main
from benchmarks.load import Vocabulary
from benchmarks.peers.case import plot, table
from benchmarks.peers.cells import MOST_TOKENS_IN_FLIGHT, Cell, chosen, parse_cells
from benchmarks.peers.contestants import BASELINE, CONTESTANTS, absent
from benchmarks.peers.loop import sample_files
from benchmarks.peers.merge import merge, rates, ratios
from benchmarks.peers.served import save_sample, states_of_answer
from benchmarks.results import ResultFile, alike, load
from benchmarks.serving import DUMMIES, Target
from hypothesis import given, strategies as st

from hs_formats.errors import UsageError

_RATES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=4)


@given(st.integers(1, 20_000), st.integers(1, 300), st.integers(1, 100_000))
def test_a_block_has_all_in_flight_and_enough_tokens(tokens: int, in_flight: int, least: int) -> None:
    cell = Cell(tokens, in_flight)
    count = cell.requests(least)
    assert count >= in_flight
    assert count * tokens >= least
    assert count == in_flight or (count - 1) * tokens < least
    assert parse_cells(str(cell)) == [cell]


@given(st.lists(st.integers(1, 9000)), st.lists(st.integers(1, 300)), st.integers(1, 9000))
def test_cells_fit_the_context_and_a_tmpfs(lengths: list[int], in_flight: list[int], longest: int) -> None:
    cells = chosen(lengths, in_flight, longest=longest)
    assert all(cell.tokens <= longest and cell.tokens * cell.in_flight <= MOST_TOKENS_IN_FLIGHT for cell in cells)
    small = [n for n in lengths if n <= min(longest, MOST_TOKENS_IN_FLIGHT // max(in_flight, default=1))]
    assert len(cells) >= len(small) * len(in_flight)


@pytest.mark.parametrize("text", ["", "5", "5x", "x5", "0x3", "5x0", "5x3,", "a x b"])
def test_other_cells_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--cells"):
        parse_cells(text)


def _target(**changes: Any) -> Target:
    known: dict[str, Any] = {
        "model_path": "m", "label": "m", "profile": "default", "tp": 1, "port": 1, "vocabulary": Vocabulary(512),
        "context_length": 2048, "server_args": (), "work": Path("w"), "scratch": Path("s"),
    }  # fmt: skip
    return Target(**{**known, **changes})


def test_who_cannot_take_part_is_told_why() -> None:
    def missing(target: Target, architecture: str) -> set[str]:
        return {name for name, one in CONTESTANTS.items() if absent(one, target, architecture)}

    assert missing(_target(), "LlamaForCausalLM") == {"capture-spread", "source"}
    assert missing(_target(), "DeepseekV2ForCausalLM") == {"capture-spread"}
    assert missing(_target(tp=2), "KimiK25ForConditionalGeneration") == {"transformers-pt", "transformers-gz"}
    assert missing(_target(profile="cpu"), "LlamaForCausalLM") >= {"capture-eager", "nothing-eager"}
    assert absent(CONTESTANTS[BASELINE], _target(profile="cpu"), "any") == ""


def _one(kind: str = "server", **cells: list[float]) -> dict[str, Any]:
    return {"kind": kind, "cells": {name.replace("_", "x"): samples for name, samples in cells.items()}}


def test_ratios_are_taken_inside_a_run_where_they_can_be() -> None:
    """The second run is of a machine twice as fast: only over runs would that show."""
    slow = {BASELINE: _one(c8_4=[100.0]), "capture": _one(c8_4=[99.0])}
    fast = {BASELINE: _one(c8_4=[200.0]), "http": _one(c8_4=[20.0])}
    alone = {"source": _one(c8_4=[150.0])}
    found = ratios([slow, fast, alone])
    assert found["capture"]["c8x4"]["value"] == pytest.approx(0.99)
    assert found["http"]["c8x4"]["value"] == pytest.approx(0.1)
    assert not found["http"]["c8x4"]["other_run"]
    assert found["source"]["c8x4"]["other_run"]
    assert found["source"]["c8x4"]["value"] == pytest.approx(1.0)
    assert BASELINE not in found


def test_a_loop_is_held_against_the_best_that_could_be_had() -> None:
    run = {
        BASELINE: {"kind": "server", "cells": {"8x1": [10.0], "8x64": [400.0], "9x64": [900.0]}},
        "transformers-pt": {"kind": "loop", "cells": {"8x1": [8.0]}},
    }
    (ratio,) = ratios([run])["transformers-pt"].values()
    assert (ratio["value"], ratio["against"]) == (pytest.approx(0.02), "8x64")


@given(st.lists(st.tuples(_RATES, _RATES), min_size=1, max_size=4))
def test_merging_loses_no_sample_and_does_not_depend_on_how_runs_were_cut(parts: list[tuple[Any, Any]]) -> None:
    runs = [{BASELINE: _one(c1_1=base), "capture": _one(c1_1=mine)} for base, mine in parts]
    records = [{"runs": [run], "absent": {}, "left": ["http"]} for run in runs]
    whole = merge(records)
    assert rates(whole["runs"], "capture", "c1x1") == [rate for _, mine in parts for rate in mine]
    assert whole["ratios"] == ratios(runs)
    assert merge([merge(records[:1]), *records[1:]]) == whole
    assert whole["left"] == ["http"]
    more = {"runs": [{"http": _one(c1_1=[1.0])}], "absent": {}, "left": []}
    assert merge([*records, more])["left"] == []


def test_only_what_is_alike_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")

    def saved(name: str, problems: tuple[str, ...] = (), **parameters: Any) -> dict[str, Any]:
        body = {"label": "m", "parameters": {"cells": ["1x1"], **parameters}, "runs": [{name: {}}]}
        return load(ResultFile("peers", tmp_path, label="m").save(body, complete=True, problems=list(problems)))

    first, second = saved("one"), saved("two")
    saved("invalid", problems=("a request failed",))
    saved("of other cells", cells=["2x2"])
    monkeypatch.setattr(machine, "commit", lambda: "of other code")
    other = saved("of other code")
    assert [list(found["runs"][0]) for found in alike(second, "peers", tmp_path)] == [["one"], ["two"]]
    assert alike(first, "peers", tmp_path) == alike(second, "peers", tmp_path)
    assert [list(found["runs"][0]) for found in alike(other, "peers", tmp_path)] == [["of other code"]]


def test_report_puts_runs_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")
    monkeypatch.setattr(machine, "describe", lambda: {"name": "h200", "gpus": ["NVIDIA H200"], "cores": 16})
    for run in ({BASELINE: _one(c8_4=[100.0])}, {BASELINE: _one(c8_4=[90.0]), "http": _one(c8_4=[9.0])}):
        body = {"label": "m", "parameters": {"model": "m"}, "runs": [run], "absent": {}, "left": [], "ratios": {}}
        ResultFile("peers", tmp_path, label="m").save(body, complete=True, problems=[])
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("benchmarks.peers.case.plot", lambda record, path: shown.append(record))
    assert main(["report", "peers", "--results", str(tmp_path)]) == 0
    (record,) = shown
    assert [list(run) for run in record["runs"]] == [[BASELINE], [BASELINE, "http"]]
    assert record["ratios"]["http"]["c8x4"]["value"] == pytest.approx(0.1)
    text = table(record)
    assert "m on 1 × NVIDIA H200" in text
    assert "2 runs" in text
    assert "| 9 (0.100) |" in text
    assert capsys.readouterr().out.count(".png") == 1


def test_states_of_an_answer_are_those_of_the_prompt(tmp_path: Path) -> None:
    answer = {"meta_info": {"hidden_states": [[[1.0, 2.0], [3.0, 4.0]], [5.0, 6.0]]}}
    states = states_of_answer(json.dumps(answer).encode())
    assert states.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert states_of_answer(b'{"meta_info": {}}') is None
    size = save_sample(tmp_path / "a.pt", [7, 8], states)
    assert (tmp_path / "a.pt").stat().st_size == size
    again = torch.load(tmp_path / "a.pt", weights_only=True)
    assert again["input_ids"].tolist() == [7, 8]
    assert torch.equal(again["hidden_states"], states)
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("gz", [False, True])
def test_a_loops_file_holds_the_sample(tmp_path: Path, gz: bool) -> None:
    sample = {"input_ids": torch.arange(3), "hidden_state": torch.ones(1, 3, 4)}
    path = tmp_path / "a"
    assert sample_files(path, sample, gz=gz) == path.stat().st_size
    data = gzip.decompress(path.read_bytes()) if gz else path.read_bytes()
    again = torch.load(io.BytesIO(data), weights_only=True)
    assert all(torch.equal(again[name], value) for name, value in sample.items())


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["--arms", "nobody"], "nobody is called 'nobody'"), (["--cells", "9"], "TOKENSxIN_FLIGHT")],
)
def test_mistakes_are_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dummy = ["--dummy", min(DUMMIES), "--work", str(tmp_path), "--out", str(tmp_path)]
    assert main(["run", "peers", *dummy, *argv]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(590)
def test_peers_quick_in_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run measures what the first has left, with the ceiling once more."""
    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")  # somebody may commit between the runs
    out = tmp_path / "out"
    base = ["run", "peers", "--quick", "--profile", "cpu", "--port", "25000", "--out", str(out)]
    where = ["--work", str(tmp_path / "work"), "--scratch", str(tmp_path / "scratch"), "--blocks", "1"]
    first, second = ["capture", "transformers-gz"], ["http", "transformers-pt"]
    assert main([*base, *where, "--arms", ",".join(first)]) == 0
    assert main([*base, *where, "--arms", ",".join([*first, *second]), "--go-on"]) == 0
    records = [load(path) for path in sorted((out / "peers").glob("*.json"))]
    whole = merge(alike(records[0], "peers", out))
    assert all(record["valid"] for record in records)
    assert [list(run) for run in whole["runs"]] == [first, ["nothing", *second]]
    for run in whole["runs"]:
        for name, one in run.items():
            expected = {"24x1", "48x1"} if one["kind"] == "loop" else {"24x1", "48x4"}
            assert set(one["cells"]) == expected
            assert (one["bytes"] > 0) == (name != "nothing")
    assert whole["ratios"]["http"]["48x4"]["other_run"] is False
    assert whole["ratios"]["capture"]["48x4"]["other_run"] is True
    assert "torch.save" in table(whole)
    plot(whole, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
