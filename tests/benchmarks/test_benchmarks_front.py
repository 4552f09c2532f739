"""The front door, result files and what they need to be read later."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import machine, results
from benchmarks.cases import NAMES, find_case
from benchmarks.checkout import ROOT, write_dist_info
from benchmarks.front import main
from benchmarks.load import Prompt, Vocabulary, _problem, foreign_rids, our_rids
from benchmarks.realistic_weights import redraw
from benchmarks.results import ResultFile, latest, load, write_latest
from benchmarks.serving import DUMMIES
from benchmarks.stall.watch import growth

from hs_formats.boundaries import resolve_boundaries
from hs_formats.names import Rid


def test_list_names_every_case_with_its_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    assert all(line.endswith("?") for line in lines)


def test_the_page_of_all_cases_names_each() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"[{name}]({name}/README.md)" not in text] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_case_has_a_readme_with_a_place_for_its_result(name: str) -> None:
    text = (ROOT / "benchmarks" / name / "README.md").read_text(encoding="utf-8")
    for part in ("**Question.**", "**Method.**", "**Command.**", "<!-- latest result -->"):
        assert part in text
    assert find_case(name).QUESTION.endswith("?")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["run", "throughput"], "--model PATH or --dummy NAME"),
        (["run", "equality", "--model", "/nowhere"], "config.json cannot be read"),
        (["run", "throughput", "--dummy", "llama8b", "--arms", "on-fire"], "no arm is called 'on-fire'"),
        (["run", "throughput", "--dummy", "llama8b", "--lengths", "9:3"], "--lengths '9:3'"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*argv, "--work", str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ")
    assert words in text
    assert "Traceback" not in text


def test_the_newest_valid_result_is_kept_for_each_machine_and_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter("aabba")
    monkeypatch.setattr(machine, "describe", lambda: {"name": next(names), "gpus": []})
    paths = []
    for figure, problems in ((1, []), (2, []), (3, []), (4, ["a request failed"])):
        file = ResultFile("throughput", tmp_path, label="m")
        paths.append(file.save({"label": "m", "figure": figure}, complete=True, problems=problems))
    assert len(set(paths)) == 4
    assert [record["figure"] for _, record in latest("throughput", tmp_path)] == [2, 3]
    assert load(paths[3])["valid"] is False
    ResultFile("throughput", tmp_path, label="m", quick=True).save({"label": "m"}, complete=True, problems=[])
    assert len(latest("throughput", tmp_path)) == 2
    assert load(paths[0])["times_mean_something"] is False


def test_samples_stay_on_one_line(tmp_path: Path) -> None:
    file = ResultFile("throughput", tmp_path)
    path = file.save({"samples": [1.5, 2, -3e-05], "words": ["a"], "empty": []}, complete=True, problems=[])
    assert '"samples": [1.5, 2, -3e-05]' in path.read_text(encoding="utf-8")
    record: dict[str, Any] = json.loads(path.read_bytes())
    assert (record["samples"], record["words"], record["empty"]) == ([1.5, 2, -3e-05], ["a"], [])


def test_the_readme_is_rewritten_between_its_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "ROOT", tmp_path)
    readme = tmp_path / "benchmarks" / "x" / "README.md"
    readme.parent.mkdir(parents=True)
    readme.write_text("a\n<!-- latest result -->\nold\n<!-- end of the latest result -->\nb\n", encoding="utf-8")
    for text in ("new \\1 text", "newer"):
        write_latest("x", text)
        shown = readme.read_text(encoding="utf-8")
        assert shown == f"a\n<!-- latest result -->\n\n{text}\n\n<!-- end of the latest result -->\nb\n"


def test_a_written_dist_info_is_found_as_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dist_info(tmp_path, name="hs-some-thing", version="1.2", points={"some.group": {"it": "a.b:c"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.metadata.version("hs-some-thing") == "1.2"
    (point,) = importlib.metadata.entry_points(group="some.group")
    assert (point.name, point.value) == ("it", "a.b:c")


def test_rids_are_ours_or_foreign() -> None:
    ours = our_rids("0123abcd", 5, 3)
    assert [Rid.parse(rid).row for rid in ours] == [5, 6, 7]
    assert not any(Rid.matches(rid) for rid in foreign_rids(3))


@pytest.mark.parametrize("size", [512, 102_400, 128_256])
def test_ids_leave_special_tokens_alone(size: int) -> None:
    ids = Vocabulary(size).draw(5000, np.random.default_rng(0))
    assert min(ids) >= 8
    assert max(ids) < size - 7
    assert json.loads(Prompt("x", ids[:4]).body())["input_ids"] == ids[:4]


@pytest.mark.parametrize("name", sorted(DUMMIES))
def test_configs_of_known_models_are_complete(name: str) -> None:
    config = json.loads((DUMMIES[name] / "config.json").read_bytes())
    assert len(resolve_boundaries(config["num_hidden_layers"])) == 3
    assert config["torch_dtype"] == "bfloat16"


def test_growth_compares_late_with_early_and_leaves_the_warm_up_out() -> None:
    rows = [[float(at), 100.0 if at < 4 else 500.0 if at < 20 else 700.0] for at in range(24)]
    (item,) = growth({"17": rows})
    assert item == {"pid": 17, "early_bytes": 500, "late_bytes": 700, "grown_bytes": 200}


def test_redrawn_weights_repeat_and_differ_over_shards_only() -> None:
    import torch

    class ColumnParallelLinear(torch.nn.Linear):  # type: ignore[misc]
        tp_size = 2

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.sharded = ColumnParallelLinear(64, 64)
            self.whole = torch.nn.Linear(64, 64)
            self.norm = torch.nn.LayerNorm(64)

    drawn = []
    for rank in (0, 0, 1):
        model = Model()
        redraw(model, rank=rank)
        drawn.append({name: value.detach().clone() for name, value in model.named_parameters()})
    first, again, other = drawn
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["sharded.weight"], other["sharded.weight"])
    assert torch.equal(first["whole.weight"], other["whole.weight"])
    assert torch.equal(first["norm.weight"], torch.ones(64))
    assert float(first["whole.weight"].std()) == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize(
    ("status", "meta", "says"),
    [
        (200, {"prompt_tokens": 3, "cached_tokens": 0}, None),
        (200, {"prompt_tokens": 3, "cached_tokens": 2}, "2 tokens came from a cache"),
        (200, {"prompt_tokens": 2}, "2 prompt tokens instead of 3"),
        (200, {"prompt_tokens": 3, "finish_reason": {"type": "abort", "message": "no"}}, "aborted: no"),
        (503, {}, "status 503"),
    ],
)
def test_an_answer_from_a_cache_is_a_failure(status: int, meta: dict[str, Any], says: str | None) -> None:
    problem = _problem(Prompt("hs-x", [1, 2, 3]), status, json.dumps({"meta_info": meta}).encode())
    assert problem == says if says is None else problem is not None and problem.startswith(says)
