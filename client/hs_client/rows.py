"""One line of a prompts file to one checked row, or to the reason why it can never be a sample. Pure logic."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from hs_formats.hashing import row_content, row_sample_id

__all__ = ["MAX_ID_CHARS", "Row", "RowError", "digest", "parse_row"]

MAX_ID_CHARS = 512

_SOURCES = ("input_ids", "text", "messages")


class RowError(ValueError):
    """Why a row can never be a sample. `sample_id` is empty where the row could not be read that far.

    `context_tokens`: the context length of the server where that is what the row does not fit, else 0.
    """

    def __init__(self, reason: str, sample_id: str = "", *, context_tokens: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sample_id = sample_id
        self.context_tokens = context_tokens


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is well-formed; whether its tokens fit the model is not known yet.

    Attributes:
        sample_id: the row's own id, or the hash of its content.
        named: the row has an id of its own.
        content: `hs_formats.hashing.row_content` of a row that is named, else "": its id is the hash of its content.
        kind: which of the three sources the row has.
        ids: token ids of an `input_ids` row.
        mask: its loss mask, None for all ones.
        text: of a `text` row.
        messages: of a `messages` row, contents joined to plain text.
        template: keyword arguments of the row for the chat template (``tools``, ``chat_template_kwargs``).
    """

    sample_id: str
    named: bool
    content: str
    kind: Literal["input_ids", "text", "messages"]
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] | None = None
    text: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)


def digest(sample_id: str) -> bytes:
    """Sixteen bytes that stand for a sample id in memory."""
    return hashlib.blake2b(sample_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def parse_row(line: bytes) -> Row:
    """The row in `line`, which is neither blank nor ended by a newline.

    Raises:
        RowError: the line is no JSON object, or no usable row.
    """
    row = _decode(line)
    sample_id = _sample_id(row)
    try:
        return _check(row, sample_id)
    except RowError as error:
        raise RowError(error.reason, sample_id) from None


def _decode(line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}") from None
    try:
        row = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # as in "Unterminated string starting at"
        raise RowError(f"not JSON: {what} at character {error.pos}") from None
    except RecursionError:
        raise RowError("not usable: nested too deeply") from None
    except RowError:
        raise
    except ValueError as error:  # a number with thousands of digits
        raise RowError(f"not usable: {error}") from None
    if not isinstance(row, dict):
        raise RowError(f"not a JSON object but {_kind(row)}")
    if "\\u" in text:
        try:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise RowError("a string holds a lone surrogate, half of a character") from None
    return row


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise RowError(f"key {doubled[:60]!r} appears twice")
    return found


def _no_constant(literal: str) -> NoReturn:
    raise RowError(f"not JSON: {literal} is no number")


def _kind(value: object) -> str:
    names = {"NoneType": "null", "str": "a string", "list": "a list", "dict": "an object", "bool": "true or false"}
    return names.get(type(value).__name__, "a number")


def _sample_id(row: Mapping[str, Any]) -> str:
    own = row.get("id")
    if own is None:
        return row_sample_id(row)
    if isinstance(own, bool) or not isinstance(own, str | int):
        raise RowError(f"id must be text or a whole number, not {_kind(own)}")
    text = str(own)
    if not text.strip():
        raise RowError("id is empty")
    if len(text) > MAX_ID_CHARS:
        raise RowError(f"id has {len(text)} characters, more than {MAX_ID_CHARS}")
    return text


def _check(row: Mapping[str, Any], sample_id: str) -> Row:
    named = row.get("id") is not None
    sources = [name for name in _SOURCES if row.get(name) is not None]
    if len(sources) != 1:
        have = f"has {' and '.join(sources)}" if sources else f"has keys {', '.join(sorted(row))[:120] or 'none'}"
        raise RowError(f"needs exactly one of {', '.join(_SOURCES)}; {have}")
    mask = row.get("loss_mask")
    content = row_content(row) if named else ""
    match sources[0]:
        case "input_ids":
            ids = _token_ids(row["input_ids"])
            own = None if mask is None else _mask(mask, len(ids))
            return Row(sample_id, named, content, "input_ids", ids=ids, mask=own)
        case _ if mask is not None:
            raise RowError("loss_mask counts tokens and goes with input_ids only")
        case "text":
            return Row(sample_id, named, content, "text", text=_text(row["text"]))
        case _:
            messages, template = _messages(row["messages"]), _template_arguments(row)
            return Row(sample_id, named, content, "messages", messages=messages, template=template)


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RowError(f"input_ids must be a list of token ids, not {_kind(value)}")
    if not value:
        raise RowError("input_ids is empty")
    for at, item in enumerate(value):
        if type(item) is not int:
            raise RowError(f"input_ids holds {_kind(item)} at token {at}; only whole numbers are token ids")
        if not 0 <= item < 1 << 31:
            raise RowError(f"input_ids holds {item} at token {at}, which is no token id")
    return tuple(value)


def _mask(value: object, n: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RowError(f"loss_mask must be a list of 0 and 1, not {_kind(value)}")
    if len(value) != n:
        raise RowError(f"loss_mask has {len(value)} entries for {n} tokens")
    for at, item in enumerate(value):
        if type(item) not in (int, bool) or item not in (0, 1):
            raise RowError(f"loss_mask holds {item!r} at token {at}; only 0 and 1 are allowed"[:200])
    if not any(value):
        raise RowError("loss_mask is all zero: nothing to train on")
    return tuple(int(item) for item in value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RowError(f"text must be a string, not {_kind(value)}")
    if not value.strip():
        raise RowError("text is empty" if not value else "text is only white space")
    return value


def _messages(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list):
        raise RowError(f"messages must be a list, not {_kind(value)}")
    if not value:
        raise RowError("messages is empty")
    found = tuple(_message(at, message) for at, message in enumerate(value))
    last = found[-1]
    if last["role"] != "assistant":
        raise RowError(f"the last message is of role {last['role']!r}, not assistant: the loss mask would be empty")
    return found


def _message(at: int, message: object) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise RowError(f"message {at} is {_kind(message)}, not an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RowError(f"message {at} has no role")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return message
    if isinstance(content, list):
        return {**message, "content": "".join(_part_text(at, part) for part in content)}
    if not isinstance(content, str):
        raise RowError(f"message {at} ({role[:40]}): content must be text, not {_kind(content)}")
    return message


def _part_text(at: int, part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RowError(f"message {at}: a content part is {_kind(part)}")
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RowError(f"message {at} has a part of type {str(part.get('type'))[:40]!r}: multimodal input is not supported")


def _template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = row.get("chat_template_kwargs")
    if extra is not None and not isinstance(extra, dict):
        raise RowError(f"chat_template_kwargs must be an object, not {_kind(extra)}")
    tools = row.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise RowError(f"tools must be a list, not {_kind(tools)}")
    taken = {"add_generation_prompt", "conversation", "messages", "return_dict", "tokenize", "tools"} & set(extra or {})
    if taken:
        raise RowError(f"chat_template_kwargs may not hold {', '.join(sorted(taken))}")
    return {**(extra or {}), **({} if tools is None else {"tools": tools})}
