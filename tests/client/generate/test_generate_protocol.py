"""Answers from a server that misbehaves: asked for once, kept at once, captured with the very ids, excluded by name."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chain import MoverProcess, command, running_mover, wait_until
from client_runs import Ledgers, check_records, client, prompts, start
from fake_server import Act, FakeServer, Said, fake_answer, serving
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Failed, Intent, Rejected
from hs_formats.reader import HiddenStateDataset
from hs_formats.responses import iter_facts

Rows = list[dict[str, Any]]

GREEDY = {"temperature": 0.0, "sampling_seed": 0, "max_new_tokens": 2048}


def questions(count: int) -> Rows:
    return [{"id": f"s{i}", "input_ids": [(7 * i + j) % 300 for j in range(1, 3 + i % 20)]} for i in range(count)]


def answered(rows: Rows) -> dict[str, list[int]]:
    """What must be in the dataset of greedy answers."""
    return {row["id"]: [*row["input_ids"], *fake_answer(row["input_ids"], GREEDY).ids] for row in rows}


def kept(dataset: Path) -> Counter[tuple[str, int, int]]:
    """How often each answer was written down."""
    paths = DatasetPaths(dataset).responses.glob("*.jsonl")
    return Counter((facts.sample_id, facts.variant, facts.turn) for path in paths for _, facts in iter_facts(path))


def questions_of(server: FakeServer) -> Counter[tuple[int, ...]]:
    return Counter(tuple(ids) for _, ids, _ in server.asked)


def summary(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_rows_are_answered_and_captured_with_the_very_ids(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(12)
    given = [
        {"id": "masked", "input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]},
        {"id": "ends#v2", "input_ids": [5]},
    ]
    file = prompts(tmp_path / "p.jsonl", [*rows, *given])
    dataset = mover.dst / "p"
    report = tmp_path / "summary.json"
    with serving(mover.scratch, info={"device": "cpu"}) as server:
        ended = client(server, file, "--generate", "--summary-json", str(report))
        again = client(server, file, "--generate")
        forgotten = client(server, file)
    assert ended.code == again.code == 1, ended.text + again.text  # for the one id
    assert (forgotten.code, "(it was made with --generate); give the same ones" in forgotten.text) == (3, True)
    assert "--generate gives itself" in ended.text
    assert "answers are generated on a CPU" in ended.text
    expected = {**answered(rows), "masked": [5, 6, 7]}
    check_records(dataset, expected)
    data = HiddenStateDataset(dataset)
    for row in rows:
        sample = data[row["id"]]
        asked = len(row["input_ids"])
        assert sample.loss_mask.tolist() == [0] * asked + [1] * (len(sample.input_ids) - asked)
    assert data["masked"].loss_mask.tolist() == [0, 1, 1]
    assert set(questions_of(server).values()) == {1}, "a second run asks for nothing"
    assert kept(dataset) == Counter({(row["id"], 1, 0): 1 for row in rows})
    intents = {line.sample_id: line for line in Ledgers.of(dataset).kinds(Intent)}
    assert intents["masked"].answers == []
    assert {tuple(intents[row["id"]].answers) for row in rows} == {("stop",)}
    assert not {rid for rid, _, _ in server.asked} & set(server.rids)
    tokens = sum(len(fake_answer(row["input_ids"], GREEDY).ids) for row in rows)
    generation = summary(report)["generation"]
    assert (generation["answers"], generation["tokens"], generation["requests"]) == (12, tokens, 12)
    assert generation["seconds"] > 0
    assert summary(report)["samples"]["done"] == 13
    assert f"12 answers of {tokens} tokens" in ended.text
    assert b"".join(path.read_bytes() for path in DatasetPaths(dataset).info.parent.glob("dataset.json")).count(
        b"generation"
    )


def test_variants_have_ids_seeds_and_answers_of_their_own(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(5)
    file = prompts(tmp_path / "p.jsonl", rows)
    options = ("--generate", "--temperature", "0.7", "--top-p", "0.9", "--seed", "3", "--stop", "a b")
    with serving(mover.scratch) as server:
        one = client(server, file, *options)
        more = client(server, file, *options, "--variants", "3")
        other = client(server, file, *options, "--variants", "3", "--max-new-tokens", "7")
    assert (one.code, more.code) == (0, 0), one.text + more.text
    assert "5 done, 10 to send" in more.text
    data = HiddenStateDataset(mover.dst / "p")
    assert sorted(data.sample_ids) == sorted(row["id"] + end for row in rows for end in ("", "#v2", "#v3"))
    assert len(server.asked) == 15
    seeds = {sampling["sampling_seed"] for _, _, sampling in server.asked}
    assert len(seeds) == 15
    for _, ids, sampling in server.asked:
        expected = {
            "temperature": 0.7,
            "top_p": 0.9,
            "max_new_tokens": 2048,
            "stop": ["a b"],
            "top_k": -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "ignore_eos": False,
            "stop_regex": None,
            "stop_token_ids": None,
            "regex": None,
            "json_schema": None,
            "ebnf": None,
            "structural_tag": None,
            "logit_bias": None,
            "sampling_seed": sampling["sampling_seed"],
        }
        assert sampling == {**expected, "max_new_tokens": min(2048, 2047 - len(ids))}
    assert other.code == 3
    assert "generation max_new_tokens: the dataset has 2048" in other.text
    assert "without regard to seeds" in one.text


def test_each_bad_answer_costs_its_own_row_once(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(12)
    looping = [11, 12, 13] * 40
    bad = {
        "s0": Said([2]),
        "s1": Said(looping, finish="length"),
        "s2": Said([*looping, 2]),
        "s3": Said([], finish="abort"),
        "s4": Said([4, 5], status=400, body={"error": {"message": "no such token"}}),
        "s5": Said([4, 5], count=3),
        "s6": Said([4, 900, 2]),
        "s7": Said([4, 2], prompt_tokens=1),
        "s9": Said([4, 2], matched="NaN happened"),
        "s8": Said([21, 22, 23, 24], finish="length"),
    }
    by_ids = {tuple(row["input_ids"]): bad[row["id"]] for row in rows if row["id"] in bad}
    file = prompts(tmp_path / "p.jsonl", rows)
    report = tmp_path / "summary.json"
    options = ("--generate", "--max-retries", "1", "--cut-answers", "drop", "--summary-json", str(report))

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        return by_ids.get(tuple(ids), fake_answer(ids, sampling))

    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"vocab_size": 600}')
    with serving(mover.scratch, say=say, model=str(model)) as server:
        ended = client(server, file, *options, timeout_s=180)
        asked = questions_of(server)
        again = client(server, file, *options, timeout_s=180)
    assert ended.code == again.code == 1, ended.text
    dataset = mover.dst / "p"
    check_records(dataset, {name: ids for name, ids in answered(rows).items() if name not in bad})
    first = {line.sample_id: line.reason for line in Ledgers.of(dataset).kinds(Rejected)}
    assert set(first) == {"s0", "s1", "s2", "s8"}
    assert first["s0"] == "the model's answer is empty"
    assert "ends in a loop: 3 tokens, 40 times" in first["s1"]
    assert "ends in a loop: 3 tokens, 40 times" in first["s2"]
    assert first["s8"] == "the model's answer was cut at 4 tokens"
    failed = {line.sample_id: line.kind for line in Ledgers.of(dataset).kinds(Failed)}
    assert failed == {
        "s3": "aborted",
        "s4": "refused",
        "s5": "bad answer",
        "s6": "bad answer",
        "s7": "prompt changed",
        "s9": "bad answer",
    }
    told = summary(report)
    assert (told["samples"]["failed"], told["samples"]["rejected"]) == (6, 4)
    assert {"rejected", "failed"} == {reason["fate"] for reason in told["reasons"]}
    kept_rows = {path.read_text().count("\n") for path in (dataset / "failed").glob("*.jsonl")}
    assert kept_rows == {10, 6}, "what is rejected is known to the second run, and not sent"
    # Rejected ones are not asked for again; failed ones are.
    more = questions_of(server)
    for row in rows:
        ids = tuple(row["input_ids"])
        assert (more[ids] > asked[ids]) == (row["id"] in failed), row


def test_a_long_answer_is_cut_kept_or_rejected_by_what_cut_it(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(4)
    file = prompts(tmp_path / "p.jsonl", rows)

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        return Said(list(range(10, 10 + sampling["max_new_tokens"])), finish="length")

    with serving(mover.scratch, say=say, longest_prompt=30) as server:
        small = client(server, file, "--generate", "--max-new-tokens", "10")
        large = client(server, file, "--generate", "--max-new-tokens", "100", "--dataset", "large")
    assert small.code == 0, small.text
    assert "4 cut at the limit" in small.text
    data = HiddenStateDataset(mover.dst / "p")
    assert all(len(data[row["id"]].input_ids) == len(row["input_ids"]) + 10 for row in rows)
    assert large.code == 1
    assert "which do not suffice" in large.text
    # A server with more room is asked again, for these rows alone.
    with serving(mover.scratch, say=say, longest_prompt=200, port=server.port) as server:
        wider = client(server, file, "--generate", "--max-new-tokens", "100", "--dataset", "large")
    assert wider.code == 0, wider.text
    assert len(server.asked) == 4


def test_busy_lost_and_dying_servers_cost_no_answer(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(10)
    file = prompts(tmp_path / "p.jsonl", rows)

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        if number == 2:
            return Said(status=503, body={"message": "The request queue is full."})
        if number == 4:
            return Said(vanish=True)
        if number == 6:
            return Said(finish="abort")
        return fake_answer(ids, sampling)

    with serving(mover.scratch, say=say) as server:
        ended = client(server, file, "--generate", "--generate-concurrency", "2")
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", answered(rows))
    assert set(kept(mover.dst / "p").values()) == {1}
    assert len(server.asked) == 13


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_kills_and_no_answer_is_generated_twice(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(200)
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = mover.dst / "p"
    chance = random.Random(4)
    options = ("--generate", "--generate-concurrency", "3")
    wide = ("--generate", "--generate-concurrency", "50")

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        said = fake_answer(ids, sampling)
        return Said(said.ids, matched=said.matched, delay_s=0.2)

    with serving(mover.scratch, say=say, act=lambda *_: Act(delay_s=0.05)) as server:
        lost = 0
        for kill in range(10):
            before = len(server.asked)
            process = start(server, file, *options, log=tmp_path / "log")
            moment = chance.randint(1, 4)
            wait_until(
                lambda before=before, moment=moment: len(server.asked) >= before + moment,
                timeout_s=60,
                what=f"questions before kill {kill}",
                every_s=0.005,
            )
            time.sleep(chance.random() * 0.2)
            assert process.poll() is None, "the rows were to last for ten kills"
            process.kill()
            process.wait()
            # Whatever was asked and is not on disk was in flight: no more than may be.
            in_flight = len(server.asked) - lost - sum(kept(dataset).values())
            assert 0 <= in_flight <= 3
            lost += in_flight
        ended = client(server, file, *wide)
        again = client(server, file, *wide)
    assert (ended.code, again.code) == (0, 0), ended.text
    check_records(dataset, answered(rows))
    assert kept(dataset) == Counter({(row["id"], 1, 0): 1 for row in rows})
    assert len(server.asked) == len(rows) + lost
    assert len({rid for rid, _, _ in server.asked}) == len(server.asked)


def test_a_damaged_answer_is_asked_for_again(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(3)
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = mover.dst / "p"
    with serving(mover.scratch, act=lambda *_: Act(status=400, body="no")) as server:
        assert client(server, file, "--generate").code == 1  # answered, not captured
    (path,) = DatasetPaths(dataset).responses.glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = next(at for at, line in enumerate(lines) if b'"s1"' in line)
    lines[damaged] = lines[damaged].replace(b'"output_ids":[', b'"output_ids":[9,', 1)
    path.write_bytes(b"".join(lines))
    with serving(mover.scratch) as server:
        ended = client(server, file, "--generate")
    assert ended.code == 0, ended.text
    assert [ids for _, ids, _ in server.asked] == [rows[1]["input_ids"]]
    assert "2 of earlier runs" in ended.text
    check_records(dataset, answered(rows))


def test_ctrl_c_keeps_what_was_being_answered(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(200)
    file = prompts(tmp_path / "p.jsonl", rows)

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        said = fake_answer(ids, sampling)
        return Said(said.ids, matched=said.matched, delay_s=0.3)

    with serving(mover.scratch, say=say) as server:
        process = start(server, file, "--generate", "--generate-concurrency", "4")
        wait_until(lambda: len(server.asked) >= 6, timeout_s=60, what="some questions", every_s=0.01)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 130, text
        assert sum(kept(mover.dst / "p").values()) == len(server.asked) < len(rows)
        ended = client(server, file, "--generate")
    assert ended.code == 0, ended.text
    assert len(server.asked) == len(rows)


def test_what_repair_cannot_tell_is_captured_again_and_not_generated_again(tmp_path: Path) -> None:
    scratch, destination = tmp_path / "scratch", tmp_path / "dst"
    scratch.mkdir(mode=0o700)
    rows = questions(4)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(scratch) as server:
        with running_mover(scratch, destination, tmp_path):
            assert client(server, file, "--generate").code == 0
        for ledger in DatasetPaths(destination / "p").ledger.glob("*.jsonl"):
            ledger.unlink()
        repair = ["verify", str(destination / "p"), "--scratch", str(scratch), "--repair", "--prompts", str(file)]
        done = subprocess.run([command("hs-client"), *repair], capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        assert len(HiddenStateDataset(destination / "p")) == 0
        with running_mover(scratch, destination, tmp_path):
            again = client(server, file, "--generate")
    assert again.code == 0, again.text
    assert "4 of earlier runs" in again.text
    assert len(server.asked) == 4
    check_records(destination / "p", answered(rows))


def test_generation_does_not_wait_for_capture(mover: MoverProcess, tmp_path: Path) -> None:
    """No capture is answered before the last question is asked: many more than any queue of requests holds."""
    rows = questions(400)
    file = prompts(tmp_path / "p.jsonl", rows)
    all_asked = threading.Event()

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        if number == len(rows) - 1:
            all_asked.set()
        return fake_answer(ids, sampling)

    def act(number: int, rid: str, ids: list[int]) -> Act:
        assert all_asked.wait(120)
        return Act()

    with serving(mover.scratch, say=say, act=act) as server:
        ended = client(server, file, "--generate", "--concurrency", "2", "--generate-concurrency", "8", timeout_s=240)
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", answered(rows))


def test_two_servers_share_the_questions_and_one_that_dies_costs_no_answer(mover: MoverProcess, tmp_path: Path) -> None:
    rows = questions(40)
    file = prompts(tmp_path / "p.jsonl", rows)

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        said = fake_answer(ids, sampling)
        return Said(said.ids, matched=said.matched, delay_s=0.2)

    second = tmp_path / "second"
    second.mkdir(mode=0o700)
    (tmp_path / "log").mkdir()
    with serving(mover.scratch, say=say) as good, running_mover(second, mover.dst, tmp_path / "log"):
        bad = FakeServer(second, say=say)
        bad.start()
        try:
            options = (
                "--server",
                f"{bad.url}={second}",
                "--generate",
                "--generate-concurrency",
                "2",
                "--server-timeout",
                "2",
            )
            process = start(good, file, *options)
            wait_until(lambda: len(bad.asked) >= 3, timeout_s=60, what="questions to the second server", every_s=0.01)
        finally:
            bad.stop()
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    check_records(mover.dst / "p", answered(rows))
    assert set(kept(mover.dst / "p").values()) == {1}
    assert len(rows) <= len(good.asked) + len(bad.asked) <= len(rows) + 2 + text.count("waiting for the server")


def test_rows_without_room_for_an_answer_are_rejected_and_nothing_is_left_pending(
    mover: MoverProcess, tmp_path: Path
) -> None:
    rows = [*questions(2), {"input_ids": list(range(40))}]
    file = prompts(tmp_path / "p.jsonl", rows)
    report = tmp_path / "summary.json"
    with serving(mover.scratch, longest_prompt=40) as server:
        ended = client(server, file, "--generate", "--summary-json", str(report))
        again = client(server, file, "--generate")
    assert (ended.code, again.code) == (1, 1), ended.text
    assert "the 40 that are allowed must hold an answer too" in ended.text
    assert "pending" not in ended.text
    assert (summary(report)["samples"]["rejected"], summary(report)["samples"]["pending"]) == (1, 0)
    assert "nothing to send" in again.text
    assert len(server.asked) == 2


def test_wrong_use_is_said_before_anything_is_sent(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", questions(2))
    with serving(mover.scratch, info={"skip_tokenizer_init": True}) as server:
        cases: Sequence[tuple[tuple[str, ...], int, str]] = (
            (("--variants", "2"), 2, "--variants goes with --generate"),
            (("--generate", "--variants", "2"), 2, "--temperature above 0"),
            (("--generate", "--stop", ""), 2, "--stop may not be empty"),
            (("--generate", "--stop", "x"), 3, "--skip-tokenizer-init"),
        )
        for options, code, words in cases:
            ended = client(server, file, *options)
            assert (ended.code, words in ended.text) == (code, True), ended.text
        assert server.asked == []
        dry = client(server, file, "--generate", "--dry-run", "--max-new-tokens", "50")
    assert dry.code == 0, dry.text
    assert "at most" in dry.text
    assert not (mover.dst / "p").exists()
    assert command("hs-client")
