"""On-policy: how runs add up, what makes one invalid, and the short form with real servers, mover and client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks import machine
from benchmarks.front import main
from benchmarks.load import Vocabulary
from benchmarks.onpolicy.arms import ARMS, BASELINE, absent
from benchmarks.onpolicy.case import plot, table
from benchmarks.onpolicy.endless import endless
from benchmarks.onpolicy.extraction import Extraction, count_problems, extract
from benchmarks.onpolicy.figures import RATIOS, merge, per_thousand, ratios, seconds_of
from benchmarks.onpolicy.plan import Plan, answered_rows, question_rows, write_rows
from benchmarks.results import ResultFile, alike, load
from benchmarks.serving import DUMMIES, Target
from benchmarks.soak.running import Observed
from hypothesis import given, settings, strategies as st

from fake_server import Act, FakeServer, Said, serving
from hs_client.rows import parse_row

_SECONDS = st.floats(0.1, 1e4)
_PLAN = Plan(prompt_tokens=5, new_tokens=3, in_flight=2, samples=4, blocks=1)


def _arm(start_s: float = 10.0, **seconds: list[float]) -> dict[str, Any]:
    return {"start_s": start_s, "seconds": seconds, "replays": [3, 4], "generator_cpu": 0.1}


def _run(speed: float = 1.0, *, arms: str = "alone one two eager") -> dict[str, Any]:
    """A machine that generates a block in 100 s and prefills it in 25, `speed` times as fast."""

    def block(*seconds: float) -> list[float]:
        return [value / speed for value in seconds]

    known = {
        "alone": _arm(50.0, generate=block(100.0, 100.0)),
        "one": _arm(
            60.0, generate=block(101.0, 101.0), prefill=block(25.0, 25.0), answers=block(126.0, 126.0),
            run=block(130.0, 130.0),
        ),
        "two": _arm(40.0, run=block(30.0, 30.0)),
        "eager": _arm(generate=block(400.0)),
    }  # fmt: skip
    return {name: known[name] for name in arms.split()}


def test_ratios_say_what_each_part_costs() -> None:
    found = {name: ratio["value"] for name, ratio in ratios([_run()]).items()}
    assert set(found) == set(RATIOS)
    assert found["armed"] == pytest.approx(100 / 101)
    assert found["one"] == pytest.approx(100 / 126)
    assert found["left"] == pytest.approx(0.8)
    assert found["whole"] == pytest.approx(125 / 130)
    assert found["second"] == pytest.approx(0.25)
    assert found["two"] == pytest.approx(1.0)
    assert found["eager"] == pytest.approx(0.25)


@settings(max_examples=15)  # each resamples thousands of times
@given(st.lists(_SECONDS, min_size=1, max_size=4), st.lists(_SECONDS, min_size=1, max_size=4))
def test_how_fast_a_machine_is_changes_no_ratio_over_runs(speeds: list[float], others: list[float]) -> None:
    """Each run has its own machine: only units of its own baseline can be put together."""
    runs = [*(_run(speed, arms="alone one") for speed in speeds), *(_run(speed, arms="alone two") for speed in others)]
    found = ratios(runs)
    expected = ratios([_run(arms="alone one two")])
    assert found.keys() == expected.keys()
    assert {name: ratio["value"] for name, ratio in found.items()} == {
        name: pytest.approx(ratio["value"]) for name, ratio in expected.items()
    }


def test_without_an_arm_nothing_is_said_of_it() -> None:
    assert ratios([_run(arms="alone")]) == {}
    assert set(ratios([_run(arms="alone eager")])) == {"eager"}
    assert per_thousand([_run(arms="alone")], 4) == {}


@pytest.mark.parametrize("arms", ["alone", "alone eager", "alone one", "alone one two eager"])
def test_any_part_of_it_can_be_shown(tmp_path: Path, arms: str) -> None:
    runs = [_run(arms=arms)]
    given = {"model": "m", "samples": 4, "prompt_tokens": 5, "new_tokens": 3, "in_flight": 2}
    record = {
        "valid": True, "times_mean_something": True, "parameters": given, "runs": runs, "ratios": ratios(runs),
        "machine": {"gpus": ["NVIDIA H200"]}, "versions": {}, "absent": {}, "left": ["two"],
    }  # fmt: skip
    text = table(record)
    assert "m on 1 × NVIDIA H200" in text
    assert text.count("\n| one server, `--generate` |") == ("one" in arms.split())
    assert text.count("\n| two servers, one after the other |") == ("two" in arms.split())
    assert "3 of 4" in text or "one" not in arms.split()
    assert text.endswith("- not run yet: two\n")
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_time_for_a_thousand_has_all_starts_of_a_way_once() -> None:
    found = per_thousand([_run(arms="alone one"), _run(arms="alone two")], 500)
    assert found["one"] == {"starts": 60.0, "generate": 0.0, "capture": 260.0, "all": 320.0}
    assert found["two"] == {"starts": 90.0, "generate": 200.0, "capture": 60.0, "all": 350.0}


@settings(max_examples=15)
@given(st.lists(st.sampled_from(["alone", "alone one", "alone two", "alone eager", "alone one two"]), min_size=2))
def test_merging_loses_no_block_and_does_not_depend_on_how_runs_were_cut(arms: list[str]) -> None:
    runs = [_run(1.0 + at, arms=names) for at, names in enumerate(arms)]
    records = [{"runs": [run], "absent": {}, "left": ["two"]} for run in runs]
    whole = merge(records)
    assert seconds_of(whole["runs"], "alone", "generate") == [
        s for run in runs for s in run["alone"]["seconds"]["generate"]
    ]
    assert whole["ratios"] == ratios(runs)
    assert merge([merge(records[:1]), *records[1:]]) == whole
    assert whole["left"] == ([] if any("two" in run for run in runs) else ["two"])


def _summary(**changes: Any) -> dict[str, Any]:
    """Of a run as `_PLAN` wants it."""
    told = {
        "samples": {"done": 4, "adopted": 0, "failed": 0, "rejected": 0, "pending": 0},
        "generation": {"answers": 4, "tokens": 12, "reused": 0, "retried": 0},
        "tokens": 32, "trained_tokens": 12, "retried": 0,
    }  # fmt: skip
    for name, value in changes.items():
        told[name] = {**told[name], **value} if isinstance(value, dict) else value  # type: ignore[dict-item]
    return told


def test_a_run_as_it_was_asked_for_has_no_problem() -> None:
    assert list(count_problems(_summary(), _PLAN, generates=True)) == []
    captured = _summary(generation={"answers": 0, "tokens": 0})
    assert list(count_problems(captured, _PLAN, generates=False)) == []
    assert list(count_problems(captured, _PLAN, generates=True)) != []
    assert list(count_problems(_summary(), _PLAN, generates=False)) != []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": {"done": 3, "failed": 1}}, "3 of 4 samples are done, {'failed': 1}"),
        ({"samples": {"adopted": 1}}, "{'adopted': 1}"),
        ({"tokens": 31}, "31 tokens instead of 32"),
        ({"trained_tokens": 11}, "11 trained_tokens instead of 12"),
        ({"retried": 1}, "1 requests were sent again"),
        ({"generation": {"retried": 2}}, "2 requests were sent again"),
        ({"generation": {"tokens": 11}}, "11 tokens of generation instead of 12"),
        ({"generation": {"answers": 3}}, "3 answers of generation instead of 4"),
        ({"generation": {"reused": 1}}, "1 reused of generation instead of 0"),
    ],
    ids=["failed", "adopted", "short", "untrained", "resent", "asked-again", "ended-early", "unanswered", "reused"],
)
def test_anything_else_makes_it_invalid(changes: dict[str, Any], words: str) -> None:
    (problem,) = count_problems(_summary(**changes), _PLAN, generates=True)
    assert words in problem


def test_a_run_with_problems_gives_no_figure(tmp_path: Path) -> None:
    body = {"label": "m", "parameters": {}, "runs": [_run()], "absent": {}, "left": [], "ratios": {}}
    record = load(ResultFile("onpolicy", tmp_path).save(body, complete=True, problems=["one: a request failed"]))
    assert table(record).startswith("INVALID: 1 problems, first: one: a request failed")


def test_rows_are_the_clients_and_hold_the_very_ids(tmp_path: Path) -> None:
    questions = _PLAN.questions("b1", Vocabulary(4096))
    answers = {name: [7, 8, 9] for name in questions}
    assert list(questions) == ["b1-1", "b1-2", "b1-3", "b1-4"]
    assert all(len(ids) == _PLAN.prompt_tokens for ids in questions.values())
    assert questions != _PLAN.questions("b1", Vocabulary(4096)), "a prefix that is sent twice might be kept"
    asked = write_rows(tmp_path / "asked.jsonl", question_rows(questions)).read_bytes().splitlines()
    told = write_rows(tmp_path / "told.jsonl", answered_rows(questions, answers)).read_bytes().splitlines()
    assert [parse_row(line, "missing").sample_id for line in asked] == list(questions)
    for line, (name, ids) in zip(told, questions.items(), strict=True):
        assert parse_row(line).sample_id == name
        assert json.loads(line) == {"id": name, "input_ids": [*ids, 7, 8, 9], "loss_mask": [0] * 5 + [1] * 3}


@pytest.mark.parametrize("nested", [False, True])
def test_an_endless_model_is_the_same_without_tokens_that_end(tmp_path: Path, nested: bool) -> None:
    model = tmp_path / "model"
    model.mkdir()
    text = {"vocab_size": 9, "eos_token_id": [1, 2]}
    (model / "config.json").write_text(json.dumps({**text, **({"text_config": text} if nested else {})}))
    (model / "generation_config.json").write_text('{"eos_token_id": 3}')
    (model / "model.safetensors").write_bytes(b"weights")
    endless(model, tmp_path / "endless")
    found = endless(model, tmp_path / "endless")  # the folder of an earlier run is as good
    assert sorted(path.name for path in found.iterdir()) == ["config.json", "model.safetensors"]
    assert (found / "model.safetensors").read_bytes() == b"weights"
    config = json.loads((found / "config.json").read_text())
    assert config.pop("text_config", text | {"eos_token_id": None}) == text | {"eos_token_id": None}
    assert config == {"vocab_size": 9, "eos_token_id": None}
    assert "[1, 2]" in (model / "config.json").read_text(), "the user's model stays as it is"


def _answer(ids: Sequence[int]) -> list[int]:
    return [ids[0] + 50 + at for at in range(_PLAN.new_tokens)]


def _extracted(folder: Path, *, answers: bool, **knobs: Any) -> tuple[Extraction, FakeServer]:
    """A block with the real client and mover, and a server that says and captures as it is told.

    Its states are fixed by the token and its place: prompts that shared one would be found to share its state.
    """
    questions = {f"b1-{number}": [100 * number + at for at in range(_PLAN.prompt_tokens)] for number in range(4)}
    told = {name: _answer(ids) for name, ids in questions.items()} if answers else None
    rows = answered_rows(questions, told) if told else question_rows(questions)
    path, dst = write_rows(folder / "b1.jsonl", rows), folder / "dst"
    dst.mkdir()
    said = {"say": lambda number, ids, sampling: Said(_answer(ids), finish="length")}
    with serving(folder / "scratch", **{**said, **knobs}) as server:
        with Observed(server.scratch, dst, folder / "mover.log") as mover:
            found = extract(path, _PLAN, questions, url=server.url, scratch=server.scratch, dst=dst, answers=told)
        assert mover.exit_code == 0
    assert not (dst / "b1").exists()
    return found, server


@pytest.mark.parametrize("answers", [False, True], ids=["generate", "capture"])
def test_a_block_that_is_right_is_stored_verified_and_removed(tmp_path: Path, answers: bool) -> None:
    found, server = _extracted(tmp_path, answers=answers)
    assert found.problems == []
    assert len(server.requests) == _PLAN.samples
    assert len(server.asked) == (0 if answers else _PLAN.samples)
    assert found.raw_bytes > _PLAN.samples * _PLAN.tokens * 3 * 8 * 4  # two boundaries and the last state, float32
    assert (found.generate_s > 0) != answers
    assert found.wall_s > found.generate_s


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"say": lambda number, ids, sampling: Said(_answer(ids)[: 3 - (number == 1)])}, "11 tokens of generation"),
        ({"say": lambda number, ids, sampling: Said(finish="abort")}, "hs-client run: exit 1"),
        (
            {"act": lambda number, rid, ids: Act(failure="ring full" if number == 2 else "")},
            "1 requests were sent again",
        ),
    ],
    ids=["ended-early", "aborted", "given-up"],
)
def test_a_block_that_is_not_is_told(tmp_path: Path, knobs: dict[str, Any], words: str) -> None:
    found, _ = _extracted(tmp_path, answers=False, **knobs)
    assert words in " ".join(found.problems)


def _target(profile: str) -> Target:
    return Target(
        model_path="m", label="m", profile=profile, tp=1, port=1, vocabulary=Vocabulary(512), context_length=2048,
        server_args=(), work=Path("w"), scratch=Path("s"),
    )  # fmt: skip


def test_only_what_a_cpu_cannot_tell_apart_is_left_out() -> None:
    assert {name for name, arm in ARMS.items() if absent(arm, _target("cpu"))} == {"eager"}
    assert not any(absent(arm, _target("default")) for arm in ARMS.values())


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--arms", "nobody"], "no arm is called 'nobody'"),
        (["--samples", "0"], "must be above 0"),
        (["--new-tokens", "10000000"], "the model takes"),
    ],
    ids=["arm", "samples", "tokens"],
)
def test_mistakes_are_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    dummy = ["--dummy", min(DUMMIES), "--work", str(tmp_path), "--out", str(tmp_path)]
    assert main(["run", "onpolicy", *dummy, *argv]) == 2
    assert words in capsys.readouterr().err


def test_nothing_is_measured_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """What runs lack is measured, with the baseline once more; then there is nothing to do."""
    from benchmarks.onpolicy import case
    from benchmarks.onpolicy.arms import Measured

    monkeypatch.setattr(machine, "commit", lambda: "c0ffee")
    measured: list[str] = []

    def measure(arm: Any, *_: Any) -> Measured:
        measured.append(arm.name)
        return Measured(start_s=1.0, seconds=_run()[arm.name]["seconds"])

    monkeypatch.setattr(case, "measure", measure)
    argv = ["run", "onpolicy", "--dummy", "llama8b", "--profile", "default", "--out", str(tmp_path / "out")]
    argv += ["--work", str(tmp_path / "work"), "--go-on"]
    assert main([*argv, "--arms", "one"]) == 0
    assert main(argv) == 0
    assert measured == ["alone", "one", "alone", "two", "eager"]
    assert main(argv) == 2
    assert "nothing is left" in capsys.readouterr().err
    (whole,) = [
        merge(alike(load(path), "onpolicy", tmp_path / "out")) for path in sorted((tmp_path / "out").rglob("*.2.json"))
    ]
    assert set(whole["ratios"]) == set(RATIOS)
    assert "| `one` | 0.794 |" in table(whole)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.timeout(590)
def test_onpolicy_quick(tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["run", "onpolicy", "--quick", "--profile", "cpu", "--port", "25100", "--out", str(out)]
    where = ["--work", str(tmp_path / "work"), "--scratch", str(tmp_path / "scratch"), "--disk", str(tmp_path / "disk")]
    assert main([*argv, *where]) == 0
    (path,) = (out / "onpolicy").glob("*.json")
    record = load(path)
    assert record["valid"]
    assert not record["times_mean_something"]
    (run,) = record["runs"]
    assert list(run) == [BASELINE, "one", "two"]
    assert list(record["absent"]) == ["eager"]
    assert {name: {what: len(of) for what, of in one["seconds"].items()} for name, one in run.items()} == {
        BASELINE: {"generate": 1},
        "one": {"generate": 1, "prefill": 1, "answers": 1, "run": 1},
        "two": {"run": 1},
    }
    assert [one["raw_bytes"] > 0 for one in run.values()] == [False, True, True]
    samples = record["parameters"]["samples"]
    assert [one["requests"] for one in run.values()] == [samples + 4, 2 * samples + 4, 0]  # and four that warm up
    assert set(record["ratios"]) == set(RATIOS) - {"eager"}
    assert "`--generate`" in table(record)
    plot(record, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert [item.name for item in (tmp_path / "disk").rglob("*") if item.suffix == ".hsz"] == [], "datasets are removed"
