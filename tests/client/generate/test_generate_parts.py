"""Answers on disk, the queue of answered samples, the counters: each alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from hs_client.generate.answers import Answers, answer_key, answer_lines, measure_answers
from hs_client.generate.counts import GenerationCounts
from hs_client.prepare import Prepared
from hs_client.work import Item, WorkQueue
from hs_formats.dataset import DatasetPaths
from hs_formats.jsonl import AppendLog
from hs_formats.responses import Response, ResponseFacts, iter_facts


def response(sample_id: str = "s", ids: tuple[int, ...] = (7, 2), **more: Any) -> Response:
    facts: dict[str, Any] = {
        "sample_id": sample_id,
        "prompt_tokens": 3,
        "prompt_xxh3": "00",
        "asked": 9,
        "tokens": len(ids),
        "finish_reason": "stop",
        "settings": "x",
        "config_hash": "c",
        "output_ids": list(ids),
        **more,
    }
    return Response(**facts)


def write(paths: DatasetPaths, run: str, *found: Response) -> Path:
    paths.responses.mkdir(exist_ok=True)
    with AppendLog(paths.responses_file(run)) as log:
        log.append(found)
    return paths.responses_file(run)


def known(paths: DatasetPaths) -> Answers:
    answers = Answers(paths)
    answers.read()
    return answers


def test_an_answer_is_found_by_all_that_it_depends_on_and_the_last_one_counts(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    assert len(known(paths)) == 0
    first = response(ids=(1, 2))
    write(paths, "0000000b", response("other"), response(ids=(3, 2)))
    write(paths, "0000000a", first, response(variant=2, ids=(4, 2)), response(turn=1, ids=(5, 2)))
    answers = known(paths)
    assert len(answers) == 4
    found = answers.find(first)
    assert found is not None
    assert found.output_ids == [3, 2], "of two runs the later file's"
    for field, number, ids in (("variant", 2, [4, 2]), ("turn", 1, [5, 2])):
        other = answers.find(msgspec.structs.replace(first, **{field: number}))
        assert other is not None
        assert other.output_ids == ids
    for field, value in (
        *(("sample_id", "none"), ("variant", 3), ("turn", 2)),
        *(("prompt_xxh3", "01"), ("settings", "y"), ("config_hash", "d")),
    ):
        assert answers.find(msgspec.structs.replace(first, **{field: value})) is None, field
    assert answers.bad == 0


def test_damaged_and_torn_lines_are_no_answers(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    path = write(paths, "0000000a", response("a"), response("b"), response("c"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0].replace(b"[7,2]", b"[8,2]") + b"\xff\n" + lines[1] + lines[2][:-9])
    answers = known(paths)
    assert len(answers) == 2, "the torn one has no end"
    assert answers.find(response("a")) is None
    assert answers.bad == 1
    assert answers.find(response("b")) is not None
    path.unlink()
    assert answers.find(response("b")) is None, "a file that is gone has no answers"


def test_what_was_generated_is_measured_by_its_settings(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path)
    assert list(answer_lines(paths)) == []
    write(paths, "0000000a", response(), response("t", (1, 2, 3, 4), finish_reason="length", settings="y"))
    both, one = measure_answers(paths), measure_answers(paths, "y")
    assert (both.answers, both.tokens, both.cut) == (2, 6, 1)
    assert (one.answers, one.tokens, one.cut) == (1, 4, 1)
    assert list(answer_lines(paths)) == ["answers    2 generated, 1 of them cut at a limit, 6 tokens, 3 each"]


FACTS = st.builds(
    ResponseFacts,
    sample_id=st.text(max_size=5),
    variant=st.integers(1, 3),
    turn=st.integers(0, 2),
    prompt_tokens=st.just(1),
    prompt_xxh3=st.text("01", max_size=3),
    asked=st.integers(1, 5),
    finish_reason=st.just(""),
    settings=st.text("01", max_size=3),
    config_hash=st.text("01", max_size=3),
)


@given(FACTS, FACTS)
def test_questions_are_the_same_only_where_all_is_the_same(one: ResponseFacts, other: ResponseFacts) -> None:
    def asked(facts: ResponseFacts) -> tuple[object, ...]:
        place = (facts.sample_id, facts.variant, facts.turn)
        return (*place, facts.prompt_xxh3, facts.settings, facts.config_hash)

    assert (answer_key(one) == answer_key(other)) == (asked(one) == asked(other))


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=6))
def test_places_lead_to_their_lines(tmp_path_factory: pytest.TempPathFactory, answers: list[list[int]]) -> None:
    paths = DatasetPaths(tmp_path_factory.mktemp("d"))
    path = write(paths, "0000000a", *(response(f"s{at}ü", tuple(ids)) for at, ids in enumerate(answers)))
    data = path.read_bytes()
    places = [place for place, _ in iter_facts(path)]
    assert [data[place:].split(b"\n")[0] for place in places] == data.splitlines()
    found = known(paths)
    for at, ids in enumerate(answers):
        answer = found.find(response(f"s{at}ü"))
        assert answer is not None
        assert answer.output_ids == ids


def item(row: int, tokens: int) -> Item:
    return Item(Prepared(f"s{row}", "p:1", np.zeros(tokens, dtype=np.int32), [(0, 1)], ""), row)


@pytest.mark.anyio
async def test_answered_samples_wait_up_to_a_number_of_tokens_and_come_when_nothing_else_does() -> None:
    queue = WorkQueue(answered_tokens=10)
    large, second, third = item(0, 25), item(1, 4), item(2, 4)
    await queue.put_answered(large)  # one always may
    with anyio.move_on_after(0.05) as scope:
        await queue.put_answered(second)
    assert scope.cancelled_caught
    assert (queue.answered, queue.unsettled, queue.has_ready) == (1, 1, True)
    plain = item(3, 1)
    await queue.put([plain])
    assert await queue.get() is plain
    assert await queue.get() is large
    await queue.put_answered(second)
    await queue.put_answered(third)
    queue.again(large)
    assert [await queue.get() for _ in range(3)] == [large, second, third]
    queue.close()
    with anyio.fail_after(5):  # what comes after the end is kept from nobody
        await queue.put_answered(item(4, 99))
        await queue.put_answered(item(5, 99))


@pytest.mark.anyio
async def test_a_full_queue_of_answers_takes_more_when_one_is_handed_out() -> None:
    queue = WorkQueue(answered_tokens=10)
    await queue.put_answered(item(0, 10))
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(queue.put_answered, item(1, 10))
            rows = [found.row for found in [await queue.get(), await queue.get()] if found is not None]
            assert rows == [0, 1]


def test_seconds_are_those_in_which_something_was_in_flight() -> None:
    counts = GenerationCounts()
    assert not counts
    counts.begin(10.0)
    counts.begin(11.0)
    counts.end(12.0)
    counts.answered(5, 2.0)
    counts.end(14.0)
    counts.begin(20.0)
    counts.end(20.5)
    assert counts
    assert (counts.seconds, counts.requests, counts.answers, counts.tokens) == (4.5, 3, 1, 5)
    assert counts.facts()["seconds"] == 4.5
