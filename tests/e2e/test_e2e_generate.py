"""On-policy, with a real server: it answers, and what is captured is its very answer, equal to transformers; kills."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from chain import Server, ServerFactory, run_client, running_mover, start_client, wait_until
from checker import Reference
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Intent, iter_ledger
from hs_formats.reader import HiddenStateDataset
from hs_formats.responses import Response
from prompt_files import write_rows
from tiny_models import token_text

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]

BOUNDARIES = (1, 4, 7)
NEAR = 1e-3
"""Of the RMS of a slot; two logits that are nearer than this share of their spread may change places by rounding."""
END = 2
STOPS = ("w446", "w69")
OPTIONS = (
    "--generate",
    "--max-new-tokens",
    "36",
    "--looping-answers",
    "keep",
    *(w for s in STOPS for w in ("--stop", s)),
)
KILLS = 10
CONCURRENCY = 2

ENDS_BY_ITSELF = (
    (309, 491, 432, 354, 243, 263, 14),
    (336, 58, 351, 264, 168, 480, 188),
    (109, 250, 267, 50, 461, 64, 125, 178, 405, 281, 219),
    (70, 209, 463, 233, 78, 212),
)
"""Questions that the tiny model answers with an end of its own; few it does."""


def words(ids: tuple[int, ...] | list[int]) -> str:
    return " ".join(map(token_text, ids))


def some_rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Conversations of two turns, whose answers nobody wants, and a question of each other kind."""
    draw = random.Random(seed)
    questions: list[tuple[int, ...]] = [*ENDS_BY_ITSELF]
    while len(questions) < count - 4:
        questions.append(tuple(draw.randrange(3, 500) for _ in range(draw.randrange(3, 30))))
    rows: list[dict[str, Any]] = [
        {
            "id": f"chat-{number}",
            "messages": [
                {"role": "user", "content": words(question)},
                {"role": "assistant", "content": "w5 w5"},
                {"role": "user", "content": words(question[::-1])},
            ],
        }
        for number, question in enumerate(questions)
    ]
    rows += [
        {"id": "text", "text": words([11, 12, 13])},
        {"id": "ids", "input_ids": [1, *range(20, 40)]},
        {"id": "prompt", "prompt": words([17, 18]), "response": "w5 w5"},
        {"id": "kind", "messages": [{"role": "system", "content": "w9"}, {"role": "user", "content": "w10 w11"}]},
    ]
    return rows


def responses(dataset: Path) -> dict[tuple[str, int], Response]:
    """By sample and turn; each was written once."""
    found: dict[tuple[str, int], Response] = {}
    for path in DatasetPaths(dataset).responses.glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            response = msgspec.json.decode(line, type=Response)
            assert (response.sample_id, response.turn) not in found, "an answer was generated twice"
            found[response.sample_id, response.turn] = response
    return found


def generations(server: Server, before: int, dataset: Path) -> int:
    """Requests for answers that the server has finished since `before`, by its own log."""
    captures = sum(
        isinstance(line, Intent) for path in DatasetPaths(dataset).ledger.glob("*") for line in iter_ledger(path)
    )
    return requests(server) - before - captures


def requests(server: Server) -> int:
    return server.log.read_text(errors="replace").count('"POST /generate')


def question_ids(reference: Reference, row: Mapping[str, Any]) -> list[int]:
    """What transformers makes of the row up to the first answer."""
    if "messages" in row:
        messages = row["messages"]
        last = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        options = {"tokenize": True, "return_dict": False, "add_generation_prompt": True}
        return list(reference.tokenizer.apply_chat_template(messages[:last], **options))
    return list(reference.ids({"text": row["prompt"]} if "prompt" in row else row))


def test_answers_are_captured_with_their_very_ids_and_right_states(
    servers: ServerFactory, references: Callable[..., Reference], destination: Path, tmp_path: Path
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    reference = references("tiny-llama", BOUNDARIES)
    rows = some_rows(20, seed=3)
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    report = tmp_path / "summary.json"
    options = (*OPTIONS, "--regenerate", "all", "--summary-json", str(report))
    before = requests(server)
    dataset = destination / "prompts"
    with running_mover(server.scratch, destination, tmp_path):
        done = run_client(prompts, server, *options)
        asked = generations(server, before, dataset)
        again = run_client(prompts, server, *options)
        other = run_client(prompts, server, *options, "--temperature", "0.5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert again.returncode == 0, again.stdout + again.stderr
    assert other.returncode == 3
    assert "generation temperature: the dataset has 0.0" in other.stderr
    found = responses(dataset)
    assert asked == len(found), "what was answered was asked for once"
    assert generations(server, before, dataset) == asked, "the second run asks for nothing"
    told = json.loads(report.read_text())  # of the second run, which had nothing to do: it leaves the first one's
    assert told["generation"]["answers"] == len(found)
    assert told["generation"]["tokens"] == sum(len(response.output_ids) for response in found.values())
    assert told["samples"]["done"] == len(rows)

    data = HiddenStateDataset(dataset)
    assert sorted(data.sample_ids) == sorted(row["id"] for row in rows)
    ends: Counter[str] = Counter()
    for row in rows:
        sample = data[row["id"]]
        ids = sample.input_ids.tolist()
        mask = sample.loss_mask.tolist()
        at = 0
        turns = [found[row["id"], turn] for turn in range(2) if (row["id"], turn) in found]
        for response in turns:
            start = response.prompt_tokens
            at_end = start + len(response.output_ids)
            if response.turn == 0:
                assert ids[:start] == question_ids(reference, row)
            else:  # what the template puts between the end of an answer and the next: no token twice, none left out
                previous = turns[0].output_ids
                glue = ids[at:start]
                ended = [END] if turns[0].matched == END else []
                expected = [END, 510, *reference.tokenizer(row["messages"][2]["content"])["input_ids"], END, 511]
                expected = [token for token in expected if token != 1]
                assert ended + glue == expected, (previous, glue)
            assert ids[start:at_end] == response.output_ids, "stored ids are the generated ones"
            assert mask[at:at_end] == [0] * (start - at) + [1] * len(response.output_ids)
            ends[
                "token" if response.matched == END else "text" if response.matched in STOPS else response.finish_reason
            ] += 1
            at = at_end
        assert at == len(ids)
        assert len(turns) == 2 or "messages" not in row or row["id"] == "kind" or turns[0].finish_reason == "length"

        states = reference.states(ids)
        rms = states.square().mean(dim=(0, 2)).sqrt()
        difference = (sample.hidden_states.float() - states).abs().amax(dim=(0, 2))
        assert bool((difference <= NEAR * rms).all()), (row["id"], difference / rms)
        _greedy(reference, states, ids, mask)
    # Every way in which an answer can end has been met.
    assert min(ends["token"], ends["text"], ends["length"]) > 0, ends


def _greedy(reference: Reference, states: torch.Tensor, ids: list[int], mask: list[int]) -> None:
    """Each generated token is the likeliest by transformers, but where two are as likely within rounding."""
    logits = reference.logits(states)
    spread = float(logits.std())
    for at in range(1, len(ids)):
        if mask[at]:
            best, chosen = float(logits[at - 1].max()), float(logits[at - 1, ids[at]])
            assert best - chosen <= NEAR * spread, (at, ids[at], best, chosen)


@pytest.mark.slow
def test_client_killed_at_random_moments_pays_for_no_answer_twice(
    servers: ServerFactory, references: Callable[..., Reference], destination: Path, tmp_path: Path
) -> None:
    server = servers("tiny-llama", "--boundaries", "1,4,7")
    reference = references("tiny-llama", BOUNDARIES)
    rows = [{"id": row["id"], "input_ids": question_ids(reference, row)} for row in some_rows(40, seed=8)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    dataset = destination / "prompts"
    limits = ("--generate-concurrency", str(CONCURRENCY), "--concurrency", "2", "--no-doctor")
    options = (*OPTIONS, *limits)
    draw = random.Random(12)
    log = tmp_path / "client.log"
    before = requests(server)
    kills = 0
    with running_mover(server.scratch, destination, tmp_path):
        for _ in range(KILLS):
            known = len(list((dataset / "ledger").glob("*.jsonl")))
            client = start_client(prompts, server, log, *options)
            wait_until(
                lambda known=known, client=client: (
                    len(list((dataset / "ledger").glob("*.jsonl"))) > known or client.poll() is not None
                ),
                timeout_s=120,
                what="a ledger",
                every_s=0.01,
            )
            time.sleep(draw.random() * 0.4)
            kills += client.poll() is None
            client.kill()
            client.wait()
        done = run_client(prompts, server, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert kills >= KILLS // 2, "the runs end before they are killed"
    found = responses(dataset)
    assert sorted(found) == sorted((row["id"], 0) for row in rows)
    # What the server has answered beyond that was in flight at a kill.
    assert len(rows) <= generations(server, before, dataset) + kills * CONCURRENCY
    assert generations(server, before, dataset) <= len(rows) + kills * CONCURRENCY
    data = HiddenStateDataset(dataset)
    assert sorted(data.sample_ids) == sorted(row["id"] for row in rows)
    for row in rows:
        assert data[row["id"]].input_ids.tolist() == [*row["input_ids"], *found[row["id"], 0].output_ids]
