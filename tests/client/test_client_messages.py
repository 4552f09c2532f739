"""Messages and ShareGPT conversations: what is taken, in which form it goes on, and what is rejected in which words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hs_client.messages import check_messages, check_tools, trainable
from hs_client.row_error import RowError
from hs_client.rows import parse_row
from hs_client.sharegpt import ROLES, sharegpt_messages

_ASKED = {"role": "user", "content": "a"}
_SAID = {"role": "assistant", "content": "b"}


def _calling(**call: Any) -> list[dict[str, Any]]:
    return [_ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]


def _row(**row: Any) -> bytes:
    return json.dumps(row).encode()


@pytest.mark.parametrize(
    "call",
    [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "x", "function": {"name": "f", "arguments": {"a": 1}}},
        {"id": "x", "name": "f", "arguments": {"a": 1}},
    ],
)
def test_tool_calls_take_one_form(call: dict[str, Any]) -> None:
    (_, message) = check_messages(_calling(**call))
    assert message["tool_calls"] == [{"id": "x", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]
    assert message["content"] is None


def test_arguments_keep_their_text_and_may_be_absent() -> None:
    (_, message) = check_messages(_calling(name="f", arguments='{"a":  1}'))
    assert message["tool_calls"][0]["function"]["arguments"] == '{"a":  1}'
    (_, message) = check_messages(_calling(name="f"))
    assert message["tool_calls"][0]["function"]["arguments"] == {}
    legacy = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    assert "tool_calls" in check_messages([_ASKED, legacy])[1]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_takes_one_name(name: str) -> None:
    (message,) = check_messages([{**_SAID, name: "hm", "tool_calls": None}])
    assert message == {**_SAID, "reasoning_content": "hm"}
    (message,) = check_messages([{**_SAID, name: None}])
    assert message == _SAID
    (message,) = check_messages([{"role": "assistant", "content": None, name: "hm"}])
    assert message["content"] is None


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([_ASKED], "no message is of the assistant: nothing to train on"),
        ([{**_SAID, "weight": 0}], "every message of the assistant has weight 0"),
        ([{**_SAID, "weight": 0.5}], "message 0 has the weight 0.5"),
        ([{**_SAID, "weight": "1"}], "message 0 has the weight '1'"),
        ([{**_SAID, "reasoning": 3}], "message 0: reasoning must be text, not a number"),
        ([{**_SAID, "reasoning": "a", "thinking": "b"}], "message 0 has two different texts of reasoning"),
        ([{**_SAID, "tool_calls": {}}], "message 0: tool_calls must be a list, not an object"),
        ([{**_SAID, "tool_calls": ["f"]}], "message 0: tool call 0 is a string, not an object"),
        ([{**_SAID, "tool_calls": [{"function": "f"}]}], "message 0: tool call 0 is a string, not an object"),
        ([{**_SAID, "tool_calls": [{"function": {}}]}], "message 0: tool call 0 has no name"),
        (_calling(name="f", arguments=[1]), "message 1: arguments of tool call 0 are a list, not an object or JSON"),
        ([{"role": "assistant", "content": None}], "message 0 (assistant): content must be text, not null"),
        ([{"role": "tool", "content": None}, _SAID], "message 0 (tool): content must be text, not null"),
    ],
)
def test_bad_messages_are_rejected(messages: list[Any], reason: str) -> None:
    with pytest.raises(RowError) as caught:
        check_messages(messages)
    assert caught.value.reason.startswith(reason)


@pytest.mark.parametrize("kind", ["image", "image_url", "input_audio", "audio", "video", "file"])
@pytest.mark.parametrize("source", ["messages", "conversations"])
def test_parts_that_are_not_text_are_rejected(kind: str, source: str) -> None:
    part = {"type": kind, kind: {"url": "data:x"}}
    turns = [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}, _SAID]
    with pytest.raises(RowError, match=f"message 0 has a part of type '{kind}': multimodal input is not supported"):
        parse_row(_row(**{source: turns}))


@pytest.mark.parametrize("key", ["images", "image", "audios", "videos"])
def test_rows_that_bring_files_are_rejected(key: str) -> None:
    turns = [{"from": "human", "value": "<image> what is it?"}, {"from": "gpt", "value": "a cat"}]
    with pytest.raises(RowError, match=f"the row has {key}: multimodal input is not supported"):
        parse_row(_row(conversations=turns, **{key: ["cat.png"]}))
    assert parse_row(_row(conversations=turns, **{key: []})).kind == "messages"
    with pytest.raises(RowError, match=f"the row has {key}"):
        check_messages([{**_ASKED, key: "cat.png"}, _SAID])


def test_a_prompt_of_messages_is_a_conversation() -> None:
    whole = parse_row(_row(messages=[_ASKED, _SAID])).messages
    for response in ("b", _SAID, [_SAID]):
        row = parse_row(_row(prompt=[_ASKED], response=response))
        assert (row.kind, row.messages) == ("messages", whole)
    raw = parse_row(_row(prompt="a", completion="b"))
    assert (raw.kind, raw.text, raw.response) == ("prompt", "a", "b")


def test_tools_may_be_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert check_tools(tools) == check_tools(json.dumps(tools)) == tools
    assert check_tools(None) == check_tools("") == check_tools([]) is None
    for bad, reason in (("x", "text that is not JSON"), ({}, "must be a list"), (["f"], "tool 0 is a string")):
        with pytest.raises(RowError, match=reason):
            check_tools(bad)


def test_a_rows_template_arguments_leave_the_callers_alone() -> None:
    for name in ("tokenize", "chat_template", "add_generation_prompt", "tools"):
        with pytest.raises(RowError, match=f"chat_template_kwargs may not hold {name}"):
            parse_row(_row(messages=[_ASKED, _SAID], chat_template_kwargs={name: 1}))


# -- ShareGPT


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(set(ROLES) - {"function_call"})), st.text(max_size=5)), min_size=1, max_size=6
    )
)
def test_conversations_become_messages_turn_by_turn(turns: list[tuple[str, str]]) -> None:
    found = sharegpt_messages([{"from": sender, "value": text} for sender, text in turns])
    assert found == [{"role": ROLES[sender], "content": text} for sender, text in turns]
    as_messages = [{"role": ROLES[sender], "content": text} for sender, text in turns]
    assert sharegpt_messages(as_messages) == as_messages


def test_function_calls_and_a_system_text() -> None:
    call = {"name": "f", "arguments": {"a": 1}}
    for value in (json.dumps(call), json.dumps([call]), call):
        found = sharegpt_messages(
            [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": value},
                {"from": "observation", "value": "1"},
                {"from": "gpt", "value": "b", "weight": 0},
            ],
            "be kind",
        )
        messages = check_messages(found)
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert messages[2]["tool_calls"][0]["function"] == call
        assert [trainable(message) for message in messages] == [False, False, True, False, False]
    own = sharegpt_messages([{"from": "system", "value": "x"}, {"from": "gpt", "value": "b"}], "be kind")
    assert [message["content"] for message in own] == ["x", "b"]


@pytest.mark.parametrize(
    ("conversations", "reason"),
    [
        ("x", "conversations must be a list, not a string"),
        ([], "conversations is empty"),
        (["x"], "turn 0 is a string, not an object"),
        ([{"value": "x"}], "turn 0 has neither from nor role"),
        ([{"from": "alien", "value": "x"}], "turn 0 is from 'alien'; known are assistant, bard"),
        ([{"from": 3, "value": "x"}], "turn 0 is from '3'"),
        ([{"from": "function_call", "value": "f(1)"}], "turn 0 is a function call that is not JSON"),
        ([{"from": "function_call", "value": "3"}], "message 0: tool call 0 is a number, not an object"),
        ([{"from": "gpt"}], "message 0 (assistant): content must be text, not null"),
        ([{"from": "human", "value": "x"}], "no message is of the assistant"),
    ],
)
def test_bad_conversations_are_rejected(conversations: Any, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_row(_row(conversations=conversations))
    assert caught.value.reason.startswith(reason)
    with pytest.raises(RowError, match="system must be text"):
        parse_row(_row(conversations=[{"from": "gpt", "value": "x"}], system=["x"]))


_LEAF = st.one_of(st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from(["user", "assistant", "a", ""]))
_KEYS = st.sampled_from(["role", "content", "from", "value", "tool_calls", "function", "name", "weight", "type"])


def _nested(depth: int) -> st.SearchStrategy[Any]:
    if not depth:
        return _LEAF
    inner = _nested(depth - 1)
    return st.one_of(_LEAF, st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=4))


@given(_nested(4))
def test_whatever_a_conversation_holds_it_gives_messages_or_a_reason(value: Any) -> None:
    for source in ("messages", "conversations"):
        try:
            row = parse_row(_row(**{source: value}))
        except RowError:
            continue
        assert any(trainable(message) for message in row.messages)
