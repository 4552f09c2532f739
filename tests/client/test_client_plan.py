"""The plan before a run: what it says, when it refuses; options that decide about tokens, as a whole run sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chain import MoverProcess, running_mover
from client_runs import Ledgers, check_records, client, prompts
from fake_server import serving
from hs_client.admission import RecordCost
from hs_client.budget import BEST_RATIO, Budget, Room
from hs_client.chat_options import ChatOptions, parse_arguments, read_template
from hs_client.history import History, RunRate
from hs_client.measured import measure_room, stored_ratio
from hs_client.survey import Volume
from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import UsageError
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Intent
from hs_formats.manifest import ManifestLine
from tiny_models import tiny_model

_COST = RecordCost(bytes_per_token=1000, copies=1, ranks=1, chunk_tokens=0)
_ROOM = Room(free_bytes=10**9, free_files=10**6, scratch_bytes=10**8, codec="default")
_VOLUME = Volume(rows=100, tokens=10_000, longest=500)


def _text(budget: Budget) -> str:
    return "\n".join(budget.lines())


def test_a_plan_that_fits_says_so_in_numbers() -> None:
    budget = Budget(_VOLUME, _COST, replace(_ROOM, ratio=1.5, tokens_per_s=100.0))
    assert budget.refusals() == []
    assert _text(budget).splitlines() == [
        "plan       100 samples, 10,000 tokens, 10.08 MB raw, about 6.72 MB stored (1.50 times smaller, as so far)",
        "time       about 1 min 40 s at 100 tokens/s, as in the latest run",
        "space      destination with 1.00 GB free, scratch up to 100.00 MB",
    ]


def test_what_is_estimated_or_not_known_is_called_so() -> None:
    text = _text(Budget(replace(_VOLUME, sampled=64), _COST, replace(_ROOM, free_bytes=None)))
    assert "about 100 samples, about 10,000 tokens (estimated from 64 rows)" in text
    assert "time       not known before" in text
    assert "destination of unknown size" in text


@given(st.integers(1, 10**9), st.floats(1.0, 3.0), st.booleans(), st.integers(0, 10**12))
def test_a_destination_is_refused_when_the_least_that_is_stored_does_not_fit(
    tokens: int, ratio: float, known: bool, free: int
) -> None:
    room = replace(_ROOM, free_bytes=free, ratio=ratio if known else 0.0, scratch_bytes=1 << 60)
    refusals = Budget(Volume(1, tokens, tokens), _COST, room).refusals()
    least = tokens * 1008 / (ratio if known else BEST_RATIO)
    assert bool(refusals) == (least > free)


def test_scratch_and_inodes_that_cannot_do_are_refused() -> None:
    (text,) = Budget(_VOLUME, _COST, replace(_ROOM, scratch_bytes=50_000)).refusals()
    assert "a record of average length needs" in text
    (text,) = Budget(_VOLUME, _COST, replace(_ROOM, free_files=99)).refusals()
    assert "99 inodes free" in text
    assert Budget(Volume(0, 0, 0), _COST, replace(_ROOM, scratch_bytes=1)).refusals() == []


def test_what_may_go_wrong_is_warned_of() -> None:
    budget = Budget(replace(_VOLUME, longest=10**6, too_long=3), _COST, replace(_ROOM, free_bytes=8 * 10**6))
    assert budget.refusals() == []
    text = _text(budget)
    assert "records of 1,000,000 tokens need" in text
    assert "whether they fit depends on how well they compress" in text
    assert "3 rows are too long or unusable" in text
    stored_as_is = Budget(_VOLUME, _COST, replace(_ROOM, free_bytes=8 * 10**6, codec="none"))
    assert stored_as_is.refusals()


def test_ratio_and_speed_are_those_of_the_dataset(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path / "d")
    paths.create()
    assert stored_ratio(paths) == 0.0
    log = AppendLog(paths.manifest_file("m"))
    line = ManifestLine(part="x", status="stored", path="x", raw_bytes=300, stored_bytes=200, codec="zstd")
    log.append(
        [line, ManifestLine(part="y", status="quarantined", path="", raw_bytes=900, stored_bytes=1, codec="none")]
    )
    log.close()
    assert stored_ratio(paths) == 1.5
    rates = [RunRate(100.0, 200.0, 1000), RunRate(300.0, 100.0, 2000), RunRate(500.0, 5.0, 9999)]
    with serving(tmp_path / "scratch"), running_mover(tmp_path / "scratch", tmp_path, tmp_path):
        mover = ControlFolder(tmp_path / "scratch").read_mover()
    assert mover is not None
    room = measure_room(paths, mover, History(rates=rates))
    assert (room.ratio, room.tokens_per_s) == (1.5, 20.0), "the latest run that lasted a minute"
    assert room.free_bytes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"tokenize": false}', "may not hold tokenize"),
        ('{"chat_template": "x"}', "may not hold chat_template"),
    ],
)
def test_arguments_of_the_template_are_checked_at_once(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_arguments(text)
    assert parse_arguments('{"enable_thinking": false}') == {"enable_thinking": False}


def test_a_template_is_a_readable_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    for content, words in ((None, "No such file"), (b"\xff\xfe{", "not UTF-8"), (b"plain", "not a Jinja template")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UsageError, match=words):
            read_template(path)
    path.write_text("{{ messages }}")
    assert read_template(path) == "{{ messages }}"
    assert read_template(None) == ""
    assert ChatOptions() == ChatOptions(template="", arguments={}, train_on="all")


def test_a_dry_run_says_the_plan_and_a_run_that_cannot_fit_is_refused(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": f"s{at}", "input_ids": [1, 2, 3]} for at in range(10)]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch) as server:
        dry = client(server, file, "--dry-run")
        assert dry.code == 0, dry.text
        assert "plan       10 samples, 30 tokens, 3.12 kB raw" in dry.text
        assert "dry run: nothing is sent" in dry.text
        assert not (mover.dst / "p").exists()
        assert server.requests == []
    with serving(mover.scratch) as server:
        huge = prompts(tmp_path / "huge.jsonl", [{"id": "h", "input_ids": [1] * 2000}])
        server.hidden = 1 << 40
        server.stop()
        server.start()
        refused = client(server, huge, "--dry-run")
        assert refused.code == 3, refused.text
        last = refused.text.splitlines()[-1]
        assert last.startswith("error: the run cannot fit: the destination has ")
        assert last.endswith("--force")
        forced = client(server, huge, "--dry-run", "--force")
        assert forced.code == 0, forced.text
        assert "--force goes on all the same" in forced.text


def test_long_rows_are_rejected_or_cut_and_sent_again_when_allowed(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [
        {"id": "short", "input_ids": [1, 2, 3]},
        {"id": "long", "input_ids": list(range(1, 9))},
        {"id": "masked", "input_ids": list(range(1, 9)), "loss_mask": [0] * 6 + [1, 1]},
    ]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch) as server:
        first = client(server, file, "--max-length", "5")
        assert first.code == 1
        assert "p.jsonl:2: rejected: too long: 8 tokens, more than --max-length 5" in first.text
        again = client(server, file, "--max-length", "5")
        assert "2 rejected" in again.text
        cut = client(server, file, "--max-length", "5", "--overlong", "truncate")
        assert cut.code == 1, cut.text
        assert "1 done, 0 failed, 1 rejected" in cut.text
        assert (
            "p.jsonl:3: rejected: the first 5 tokens hold nothing that the model wrote: nothing to train on" in cut.text
        )
        assert "p.jsonl:2: cut to what is allowed" in cut.text
    check_records(mover.dst / "p", {"short": [1, 2, 3], "long": [1, 2, 3, 4, 5]})
    (intent,) = [line for line in Ledgers.of(mover.dst / "p").kinds(Intent) if line.sample_id == "long"]
    assert (intent.n, intent.cut_from, intent.mask) == (5, 8, [(0, 5)])


def test_chat_settings_belong_to_the_dataset(mover: MoverProcess, tmp_path: Path) -> None:
    turns = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, "abcd", strict=True)]
    share = [{"from": sender, "value": text} for sender, text in (("human", "w9"), ("gpt", "w8 w7"))]
    file = prompts(tmp_path / "p.jsonl", [{"id": "m", "messages": turns}, {"id": "s", "conversations": share}])
    tokenizer = str(tiny_model("tiny-llama"))
    with serving(mover.scratch, tokenizer=tokenizer) as server:
        assert client(server, file).code == 0
        info = json.loads((mover.dst / "p" / "dataset.json").read_text())
        assert (info["train_on"], info["template_arguments"]) == ("all", "{}")
        assert info["template_hash"]
        more = prompts(tmp_path / "more.jsonl", [{"id": "n", "messages": turns[:2]}])
        other = client(server, more, "--dataset", "p", "--train-on", "last", "--chat-template-kwargs", '{"x": 1}')
        assert other.code == 3
        assert "train_on: the dataset has all, the server and tokenizer here have last" in other.text
        assert 'template_arguments: the dataset has {}, the server and tokenizer here have {"x":1}' in other.text
    masks = {line.sample_id: line.mask for line in Ledgers.of(mover.dst / "p").kinds(Intent)}
    assert len(masks["m"]) == 2
    assert len(masks["s"]) == 1
