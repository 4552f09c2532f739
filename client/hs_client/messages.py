"""Chat messages as rows bring them, checked and brought into the one form that chat templates are given. Pure logic.

The form is that of `apply_chat_template`: contents are strings or None, tool calls are
``{"type": "function", "function": {"name": …, "arguments": …}}`` with whatever else the call has, and what the model
thought before it spoke lies in ``reasoning_content``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hs_client.row_error import RowError, kind_of

__all__ = [
    "REASONING",
    "Message",
    "answer_places",
    "check_messages",
    "check_tools",
    "refuse_media",
    "to_answer",
    "trainable",
]

Message = Mapping[str, Any]

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which data sets keep what was thought; a template knows one of them at most."""

_NOT_ANSWERED = ("system", "developer")

_MEDIA_KEYS = ("image", "images", "audio", "audios", "video", "videos")


def refuse_media(row: Mapping[str, Any]) -> None:
    """See that no key of the row brings images, sound or films.

    Raises:
        RowError: one does.
    """
    for key in _MEDIA_KEYS:
        if row.get(key):
            raise RowError(f"the row has {key}: multimodal input is not supported")


def check_messages(value: object, *, unanswered: bool = False) -> tuple[Message, ...]:
    """The messages of a row, normalised; one that ends without an answer needs none to train on where `unanswered`.

    Raises:
        RowError: they are no conversation, or no message of the assistant is there to train on.
    """
    if not isinstance(value, list):
        raise RowError(f"messages must be a list, not {kind_of(value)}")
    if not value:
        raise RowError("messages is empty")
    found = tuple(_message(at, message) for at, message in enumerate(value))
    if unanswered and found[-1]["role"] != "assistant":
        return found
    if not any(message["role"] == "assistant" for message in found):
        raise RowError("no message is of the assistant: nothing to train on (with --generate the server answers)")
    if not any(trainable(message) for message in found):
        raise RowError("every message of the assistant has weight 0: nothing to train on")
    return found


def to_answer(messages: Sequence[Message], *, every: bool) -> tuple[Message, ...]:
    """What of a conversation the server is given to answer: up to the last message that is not of the assistant.

    With `every`, answers of the row keep their places, to be replaced one after the other; of several in a row the
    first one does.

    Raises:
        RowError: there is nothing to answer, or tools were called whose results belong to the old answers.
    """
    last = max((at for at, message in enumerate(messages) if message["role"] != "assistant"), default=-1)
    kept = tuple(messages[: last + 1])
    if not kept or kept[-1]["role"] in _NOT_ANSWERED:
        raise RowError("no message that the assistant could answer comes last")
    if every:
        for at, message in enumerate(messages):
            if message["role"] not in ("user", "assistant", *_NOT_ANSWERED) or "tool_calls" in message:
                raise RowError(
                    f"message {at} is part of a call of tools, whose results would not fit other answers: leave"
                    " --regenerate all out"
                )
        roles = [message["role"] for message in kept]
        return tuple(m for at, m in enumerate(kept) if not (at and roles[at] == roles[at - 1] == "assistant"))
    return kept


def answer_places(messages: Sequence[Message], *, every: bool) -> list[int]:
    """Indices before which the assistant is to answer, ascending, in what `to_answer` gives; the last is its length.

    With `every`, that of each message of the assistant that follows one of the user.
    """
    first = next((at for at, message in enumerate(messages) if message["role"] == "user"), len(messages))
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant" and at > first]
    return [*(places if every else []), len(messages)]


def trainable(message: Message) -> bool:
    """The message is of the assistant, and nobody has said that it is not to be learnt."""
    return bool(message["role"] == "assistant" and message.get("weight", 1))


def _message(at: int, message: object) -> Message:
    if not isinstance(message, dict):
        raise RowError(f"message {at} is {kind_of(message)}, not an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RowError(f"message {at} has no role")
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise RowError(f"message {at} has the weight {weight!r}; only 0 and 1 are allowed"[:200])
    out = dict(message)
    _normalise_reasoning(at, out)
    _normalise_calls(at, out)
    content = out.get("content")
    if isinstance(content, list):
        out["content"] = "".join(_part_text(at, part) for part in content)
    elif content is None and (out.get("tool_calls") or out.get("reasoning_content")):
        out["content"] = None
    elif not isinstance(content, str):
        raise RowError(f"message {at} ({role[:40]}): content must be text, not {kind_of(content)}")
    refuse_media(out)
    return out


def _part_text(at: int, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RowError(f"message {at}: a content part is {kind_of(part)}")
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RowError(f"message {at} has a part of type {str(part.get('type'))[:40]!r}: multimodal input is not supported")


def _normalise_reasoning(at: int, message: dict[str, Any]) -> None:
    found: list[str] = []
    for key in REASONING:
        value = message.pop(key, None)
        if value is None:
            continue
        if not isinstance(value, str):
            raise RowError(f"message {at}: {key} must be text, not {kind_of(value)}")
        if value not in found:
            found.append(value)
    if len(found) > 1:
        raise RowError(f"message {at} has two different texts of reasoning, in {' and '.join(REASONING)}")
    if found and found[0]:
        message["reasoning_content"] = found[0]


def _normalise_calls(at: int, message: dict[str, Any]) -> None:
    calls = message.pop("tool_calls", None)
    legacy = message.pop("function_call", None)
    if calls is None and legacy is not None:
        calls = [legacy]
    if calls is None:
        return
    if not isinstance(calls, list):
        raise RowError(f"message {at}: tool_calls must be a list, not {kind_of(calls)}")
    if calls:
        message["tool_calls"] = [_call(at, number, call) for number, call in enumerate(calls)]


def _call(at: int, number: int, call: object) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise RowError(f"message {at}: tool call {number} is {kind_of(call)}, not an object")
    inner = call.get("function", call)
    if not isinstance(inner, dict):
        raise RowError(f"message {at}: tool call {number} is {kind_of(inner)}, not an object")
    if not isinstance(inner.get("name"), str) or not inner["name"]:
        raise RowError(f"message {at}: tool call {number} has no name")
    arguments = inner.get("arguments")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict | str):
        raise RowError(f"message {at}: arguments of tool call {number} are {kind_of(arguments)}, not an object or JSON")
    outer = {key: value for key, value in call.items() if key not in ("function", "name", "arguments", "type")}
    return {**outer, "type": "function", "function": {**_without_call_keys(inner, outer), "arguments": arguments}}


def _without_call_keys(inner: Mapping[str, Any], outer: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in inner.items() if key not in outer and key not in ("arguments", "type")}


def check_tools(value: object) -> Sequence[Mapping[str, Any]] | None:
    """The tools of a row: a list of objects, or JSON text that holds one, as ShareGPT files have it.

    Raises:
        RowError: they are neither.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RowError("tools is text that is not JSON") from None
    if not isinstance(value, list):
        raise RowError(f"tools must be a list, not {kind_of(value)}")
    for at, tool in enumerate(value):
        if not isinstance(tool, dict):
            raise RowError(f"tool {at} is {kind_of(tool)}, not an object")
    return value or None
