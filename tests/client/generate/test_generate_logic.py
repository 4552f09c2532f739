"""Loops, worth of answers, seeds, what is asked of a server, and how conversations go on: without a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chat_families import FAMILIES, family_tokenizer
from hs_client._http import Generated
from hs_client.chat_options import ChatOptions
from hs_client.cli import cli
from hs_client.generate.judging import check_generated, judge, usable_again
from hs_client.generate.loops import MAX_PERIOD, MIN_REPEATS, MIN_TOKENS, repeated_tail
from hs_client.generate.options import GenerateOptions, Keep, regenerated
from hs_client.generate.server_checks import check_generation, generation_notes
from hs_client.messages import answer_places, check_messages
from hs_client.prepare import Limits, prepare_ask
from hs_client.row_error import RowError
from hs_client.rows import Regenerate, Row, digest, parse_row, split_variant, variant_digest, variant_id
from hs_client.survey import Volume
from hs_client.tokenizing import ChatTokenizer
from hs_formats.errors import PreflightError, UsageError
from hs_formats.responses import Response, ResponseFacts

IDS = st.text(max_size=12)


@given(
    st.lists(st.integers(0, 40), max_size=80),
    st.lists(st.integers(0, 40), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(0, 39),
)
def test_a_loop_is_found_where_one_was_made(head: list[int], gram: list[int], times: int, more: int) -> None:
    ids = [*head, *gram * times, *gram[: more % len(gram)]]
    found = repeated_tail(ids)
    made = len(gram) * times + more % len(gram)
    if made >= max(MIN_TOKENS, MIN_REPEATS * len(gram)):
        assert found is not None
        assert found[0] <= len(gram)
    if found is not None:
        period, repeats = found
        span = max(MIN_TOKENS, MIN_REPEATS * period)
        assert repeats >= MIN_REPEATS
        assert len(ids) >= span
        tail = ids[-span:]
        assert tail[period:] == tail[:-period], "each token of the end is the one a period before"
        assert period <= MAX_PERIOD


@given(st.integers(0, 200))
def test_what_never_repeats_is_no_loop_and_one_other_token_at_the_end_breaks_it(n: int) -> None:
    assert repeated_tail(list(range(n))) is None
    assert repeated_tail([*[7, 8, 9] * 40, 1]) is None
    assert repeated_tail([5] * (MIN_TOKENS - 1)) is None
    assert repeated_tail([5] * MIN_TOKENS) == (1, MIN_TOKENS)
    assert repeated_tail(list(range(MAX_PERIOD + 1)) * MIN_REPEATS) is None


def response(ids: Sequence[int], finish: str = "stop", **more: Any) -> Response:
    asked = more.pop("asked", 100)
    return Response(
        sample_id="s",
        prompt_tokens=5,
        prompt_xxh3="00",
        asked=asked,
        tokens=len(ids),
        finish_reason=finish,
        settings="x",
        config_hash="c",
        output_ids=list(ids),
        **more,
    )


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (response([2]), "is empty"),
        (response([]), "is empty"),
        (response([], "length"), "is empty"),
        (response([7] * 100, "length"), "ends in a loop: 1 tokens, 100 times"),
        (response([*[7] * 99, 2]), "ends in a loop: 1 tokens, 99 times"),
        (response([7, 8], "length", asked=2, variant=3, turn=1), "(variant 3, turn 2) 2, which do not suffice"),
    ],
    ids=["end alone", "nothing", "nothing asked", "loop", "loop that ended", "no room"],
)
def test_answers_that_make_no_sample(answer: Response, said: str) -> None:
    options = GenerateOptions(max_new_tokens=100)
    with pytest.raises(RowError) as error:
        judge(answer, options, truncate=False)
    assert said in error.value.reason
    assert (error.value.context_tokens > 0) == ("suffice" in said)


@pytest.mark.parametrize(("cut", "looping"), [("keep", "keep"), ("drop", "drop")])
def test_what_is_kept_is_the_users_to_say(cut: Keep, looping: Keep) -> None:
    options = GenerateOptions(max_new_tokens=100, cut=cut, looping=looping)
    assert judge(response([7, 2]), options, truncate=False) == "ended"
    assert judge(response([7], matched="w7"), options, truncate=False) == "ended", "a text of --stop is part of it"
    for answer in (response([7, 8], "length"), response([7] * 100, "length"), response([*[7] * 90, 2])):
        if cut == "keep":
            assert judge(answer, options, truncate=False) == ("cut" if answer.finish_reason == "length" else "ended")
        else:
            with pytest.raises(RowError):
                judge(answer, options, truncate=False)
    short = response([7, 8], "length", asked=2)
    if cut == "keep":
        assert judge(short, options, truncate=True) == "cut"


def test_an_answer_that_was_cut_for_want_of_room_is_asked_for_again_when_there_is_more() -> None:
    assert usable_again(10, "stop", room=500, max_new_tokens=100)
    assert usable_again(10, "length", room=10, max_new_tokens=100)
    assert not usable_again(10, "length", room=11, max_new_tokens=100)
    assert usable_again(100, "length", room=500, max_new_tokens=100)


def test_what_can_be_no_answer_is_told() -> None:
    question = ResponseFacts(
        sample_id="s", prompt_tokens=3, prompt_xxh3="", asked=2, finish_reason="", settings="", config_hash=""
    )
    cases = [
        (Generated([1, 2], "stop", "", 2, 3, 2), ""),
        (Generated([], "abort", "shutting down", None, 3, 7), "aborted"),
        (Generated([1, 2], "stop", "", 2, 4, 2), "prompt changed"),
        (Generated([1, 2, 3], "stop", "", 2, 3, 3), "bad answer"),
        (Generated([1, 99], "stop", "", 2, 3, 2), "bad answer"),
        (Generated([-1], "stop", "", 2, 3, 1), "bad answer"),
        (Generated([1], "stop", "", 2, 3, 2), "bad answer"),
        (Generated([1, 2], "stop", "", "NaN happened", 3, 2), "bad answer"),
    ]
    assert [check_generated(found, question, vocab_size=50).kind for found, _ in cases] == [kind for _, kind in cases]
    assert check_generated(Generated([1, 99], "stop", "", 2, 3, 2), question, vocab_size=0).done
    assert check_generated(Generated([1, 9], "stop", "", "\n\n", 3, 2), question, vocab_size=0, stop=("\n\n",)).done


@given(IDS, st.integers(1, 5), st.integers(0, 5), st.integers(0, 2**40))
def test_seeds_are_the_same_each_time_and_differ_by_what_they_are_for(
    sample_id: str, variant: int, turn: int, seed: int
) -> None:
    options = GenerateOptions(seed=seed)
    found = options.seed_of(sample_id, variant, turn)
    assert 0 <= found < 2**31
    assert found == GenerateOptions(seed=seed, top_p=0.5).seed_of(sample_id, variant, turn)
    assert found != options.seed_of(sample_id, variant + 1, turn) or found != options.seed_of(
        sample_id, variant, turn + 1
    )


def test_settings_that_decide_about_answers_are_described_and_others_are_not() -> None:
    base = GenerateOptions(temperature=1)
    assert json.loads(base.described) == {
        "max_new_tokens": 2048,
        "regenerate": "missing",
        "seed": 0,
        "stop": [],
        "temperature": 1.0,
        "top_p": 1.0,
    }
    same = [
        GenerateOptions(temperature=1.0, variants=4),
        GenerateOptions(temperature=1, cut="drop", looping="keep", concurrency=3),
    ]
    assert {options.settings_hash for options in same} == {base.settings_hash}
    others = [
        GenerateOptions(temperature=0.5),
        GenerateOptions(temperature=1, top_p=0.5),
        GenerateOptions(temperature=1, seed=1),
        GenerateOptions(temperature=1, stop=("a",)),
        GenerateOptions(temperature=1, max_new_tokens=1),
        GenerateOptions(temperature=1, regenerate="all"),
    ]
    assert len({options.settings_hash for options in (base, *others)}) == 7
    assert [
        regenerated(text) for text in (base.described, others[-1].described, "", "[", "[]", '{"regenerate": 3}')
    ] == [
        *("missing", "all"),
        *("", "", "", ""),
    ]
    with pytest.raises(UsageError, match="--temperature above 0"):
        GenerateOptions(variants=2)


def test_the_command_line_has_the_same_defaults() -> None:
    given = {option.name: option.default for option in cli.commands["run"].params}
    options = GenerateOptions()
    for name in ("regenerate", "temperature", "top_p", "max_new_tokens", "seed", "variants"):
        assert given[name] == getattr(options, name), name
    assert given["cut_answers"] == options.cut
    assert given["looping_answers"] == options.looping
    assert given["generate_concurrency"] == options.concurrency


@given(IDS, st.integers(1, 99_999), IDS, st.integers(1, 99_999))
def test_samples_of_a_row_have_names_of_their_own(one: str, variant: int, other: str, second: int) -> None:
    if split_variant(one)[1] == 1:  # others are refused as ids of rows
        assert split_variant(variant_id(one, variant)) == (one, variant)
        if split_variant(other)[1] == 1:
            same = (one, variant) == (other, second)
            assert (variant_id(one, variant) == variant_id(other, second)) == same
            assert (digest(variant_id(one, variant)) == digest(variant_id(other, second))) == same
    assert digest(variant_id(one, variant)) == variant_digest(digest(one), variant) or split_variant(one)[1] != 1


ASKED = {"role": "user", "content": "hello"}
SAID = {"role": "assistant", "content": "the quick"}


@pytest.mark.parametrize(
    ("row", "regenerate", "ask", "messages"),
    [
        ({"text": "a"}, "missing", True, 0),
        ({"text": "a"}, "", False, 0),
        ({"input_ids": [1]}, "missing", True, 0),
        ({"input_ids": [1, 2], "loss_mask": [0, 1]}, "all", False, 0),
        ({"prompt": "a"}, "missing", True, 0),
        ({"prompt": "a", "response": "b"}, "missing", False, 0),
        ({"prompt": "a", "response": "b"}, "all", True, 0),
        ({"prompt": [ASKED]}, "missing", True, 1),
        ({"messages": [ASKED]}, "missing", True, 1),
        ({"messages": [ASKED, SAID]}, "missing", False, 2),
        ({"messages": [ASKED, SAID]}, "all", True, 1),
        ({"messages": [ASKED, SAID, ASKED]}, "missing", True, 3),
        ({"messages": [ASKED, SAID, SAID, ASKED, SAID]}, "all", True, 3),
        ({"conversations": [{"from": "human", "value": "a"}]}, "missing", True, 1),
    ],
    ids=str,
)
def test_which_rows_are_to_be_answered(row: dict[str, Any], regenerate: Regenerate, ask: bool, messages: int) -> None:
    found = parse_row(json.dumps(row).encode(), regenerate)
    assert (found.ask, len(found.messages)) == (ask, messages)


@pytest.mark.parametrize(
    ("row", "regenerate", "said"),
    [
        ({"messages": [{"role": "system", "content": "x"}]}, "missing", "could answer"),
        ({"messages": [SAID]}, "all", "could answer"),
        ({"messages": [ASKED, SAID, {"role": "tool", "content": "3"}, SAID]}, "all", "call of tools"),
        ({"messages": [ASKED]}, "", "no message is of the assistant"),
        ({"prompt": "a"}, "", "needs a response"),
        ({"id": "a#v2", "text": "b"}, "missing", "--generate gives itself"),
    ],
    ids=str,
)
def test_rows_that_cannot_be_answered(row: dict[str, Any], regenerate: Regenerate, said: str) -> None:
    with pytest.raises(RowError) as error:
        parse_row(json.dumps(row).encode(), regenerate)
    assert said in error.value.reason


def conversation(*more: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(check_messages([*more, ASKED, SAID, {"role": "user", "content": "and then? 你好"}], unanswered=True))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("system", [(), ({"role": "system", "content": "be kind"},)], ids=["plain", "system"])
def test_a_conversation_goes_on_as_the_template_has_it(family: str, system: tuple[dict[str, Any], ...]) -> None:
    tokenizer = family_tokenizer(family)
    chat = ChatTokenizer(tokenizer)
    messages = conversation(*system)
    first, last = answer_places(messages, every=True)
    opening = chat.opening(messages[:first], {})
    between = chat.between(messages[:last], [first], {})
    end = tokenizer.convert_tokens_to_ids(tokenizer.eos_token)
    known = chat.ends_with(between, end)
    assert known == 1, "the template ends a turn with the token by which the model ends it"
    said = tokenizer(SAID["content"], add_special_tokens=False)["input_ids"]
    together = [*opening, *said, end, *between[known:]]
    whole = chat.opening(messages, {})
    assert whole[-len(between[known:]) :] == between[known:]
    # Templates that write earlier answers in another way are told, and no others.
    assert bool(chat.take_notes()) == (together != whole)
    assert (family in ("deepseek", "kimi")) == (together != whole)
    assert chat.ends_with(between, 10**6) == 0


def test_what_was_thought_stays_where_it_was_thought() -> None:
    """A template that opens a block of thinking leaves it out of earlier turns; the record keeps what was sent."""
    tokenizer = family_tokenizer("qwen3")
    source = tokenizer.chat_template + "{% if add_generation_prompt %}<think>\n{% endif %}"
    chat = ChatTokenizer(tokenizer, ChatOptions(template=source))
    messages = conversation()
    places = answer_places(messages, every=True)
    assert tokenizer.decode(chat.opening(messages[: places[0]], {})).endswith("<think>\n")
    assert tokenizer.decode(chat.between(messages, places[:1], {})).startswith("<|im_end|>\n<|im_start|>user")
    (note,) = chat.take_notes()
    assert "otherwise than they were generated" in note


def test_a_question_needs_room_for_an_answer() -> None:
    row = Row("s", named=True, content="", kind="input_ids", ids=tuple(range(9)), ask=True)
    assert prepare_ask(row, "f:1", 2, limits=Limits(11), tokenizer=None).sample_id == "s#v2"
    for limits, words in ((Limits(10), "must hold an answer"), (Limits(50, vocab_size=8), "outside the vocabulary")):
        with pytest.raises(RowError) as error:
            prepare_ask(row, "f:1", 1, limits=limits, tokenizer=None)
        assert words in error.value.reason
    assert Limits(50, longest_prompt=20, answers=True).longest == 20


def test_a_plan_counts_answers_at_most_or_as_they_were() -> None:
    questions = Volume(rows=10, tokens=100, longest=20)
    most = questions.answered(20, 20, each=50, bound=True, longest=1000)
    assert (most.rows, most.tokens, most.answers, most.answer_tokens, most.longest) == (20, 200 + 1000, 20, 1000, 70)
    assert most.limited(5).answer_tokens == 250
    assert questions.answered(10, 10, each=50, bound=True, longest=30).tokens == 300, "no sample is longer than allowed"


CPU = {"device": "cpu", "disable_cuda_graph": True}


@pytest.mark.parametrize(
    ("info", "options", "words"),
    [
        ({}, GenerateOptions(), []),
        (CPU, GenerateOptions(), ["on a CPU"]),
        ({"device": "cuda", "disable_cuda_graph": False}, GenerateOptions(), []),
        ({"device": "cuda", "disable_cuda_graph": True}, GenerateOptions(), ["decode CUDA graphs are off"]),
        (
            {"device": "cuda", "cuda_graph_config": {"decode": {"backend": "disabled"}}},
            GenerateOptions(),
            ["decode CUDA graphs are off"],
        ),
        (
            {"disable_cuda_graph": True, "cuda_graph_config": {"decode": {"backend": "full"}}},
            GenerateOptions(),
            [],
        ),
        ({"max_running_requests": 8}, GenerateOptions(), ["8 requests at once"]),
        ({"preferred_sampling_params": '{"top_k": 3}'}, GenerateOptions(), ["do not apply"]),
        ({"device": "cuda"}, GenerateOptions(temperature=1), ["without regard to seeds"]),
        ({"enable_deterministic_inference": True}, GenerateOptions(temperature=1), []),
    ],
    ids=str,
)
def test_what_makes_generation_slow_is_said(info: dict[str, Any], options: GenerateOptions, words: list[str]) -> None:
    notes = list(generation_notes(info, options, mode="source"))
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def test_what_a_server_cannot_do_is_refused() -> None:
    check_generation({"skip_tokenizer_init": True}, GenerateOptions(), url="u")
    with pytest.raises(PreflightError, match="--stop"):
        check_generation({"skip_tokenizer_init": True}, GenerateOptions(stop=("x",)), url="u")
    with pytest.raises(PreflightError, match="speculatively"):
        check_generation({"speculative_algorithm": "EAGLE3"}, GenerateOptions(), url="u")
