"""One line of a prompts file to one checked row, or to the reason why it can never be a sample. Pure logic."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from hs_client.messages import check_messages, check_tools, refuse_media, to_answer
from hs_client.row_error import RowError, kind_of
from hs_client.sharegpt import sharegpt_messages
from hs_formats.hashing import row_content, row_sample_id

__all__ = [
    "MAX_ID_CHARS",
    "TEMPLATE_TAKEN",
    "Regenerate",
    "Row",
    "RowKind",
    "digest",
    "parse_row",
    "split_variant",
    "variant_digest",
    "variant_id",
]

TEMPLATE_TAKEN = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        *("max_length", "messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"),
        *("tokenize", "tokenizer_kwargs", "tools", "truncation"),
    }
)
"""Arguments of `apply_chat_template` that are not the user's to give."""

RowKind = Literal["input_ids", "text", "prompt", "messages"]

Regenerate = Literal["", "missing", "all"]
"""Which answers the server is to give: none, those that a row lacks, or every turn of the assistant."""

MAX_ID_CHARS = 512

_VARIANT = re.compile(r"(.*)#v([2-9]|[1-9][0-9]{1,5})", re.ASCII | re.DOTALL)

_SOURCES = ("input_ids", "text", "prompt", "messages", "conversations")


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is well-formed; whether its tokens fit the model is not known yet.

    Attributes:
        sample_id: the row's own id, or the hash of its content.
        named: the row has an id of its own.
        content: `hs_formats.hashing.row_content` of a row that is named, else "": its id is the hash of its content.
        kind: what the tokens are made from; ShareGPT conversations are messages by now.
        ids: token ids of an `input_ids` row.
        mask: its loss mask, None for all ones.
        text: of a `text` row, or the prompt of a `prompt` row.
        response: of a `prompt` row.
        messages: of a `messages` row, as `hs_client.messages` leaves them.
        template: keyword arguments of the row for the chat template (``tools``, ``chat_template_kwargs``).
        ask: the server has to answer it first; `regenerate_all` then: every turn of the assistant, not the last alone.
    """

    sample_id: str
    named: bool
    content: str
    kind: RowKind
    ids: tuple[int, ...] = ()
    mask: tuple[int, ...] | None = None
    text: str = ""
    response: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)
    ask: bool = False
    regenerate_all: bool = False


def variant_id(sample_id: str, variant: int) -> str:
    """The id of the `variant`-th sample of a row, from 1: the first has the row's own."""
    return sample_id if variant == 1 else f"{sample_id}#v{variant}"


def split_variant(sample_id: str) -> tuple[str, int]:
    """Inverse of `variant_id`."""
    match = _VARIANT.fullmatch(sample_id) if "#v" in sample_id else None
    return (sample_id, 1) if match is None else (match[1], int(match[2]))


def variant_digest(key: bytes, variant: int) -> bytes:
    """The `digest` of a row's variant, from that of the row."""
    return key if variant == 1 else hashlib.blake2b(key + variant.to_bytes(4, "big"), digest_size=16).digest()


def digest(sample_id: str) -> bytes:
    """Sixteen bytes that stand for a sample id in memory."""
    row_id, variant = split_variant(sample_id)
    key = hashlib.blake2b(row_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return variant_digest(key, variant)


def parse_row(line: bytes, regenerate: Regenerate = "") -> Row:
    """The row in `line`, which is neither blank nor ended by a newline; where answers are generated, which ones.

    Raises:
        RowError: the line is no JSON object, or no usable row.
    """
    row = _decode(line)
    sample_id = ""
    try:
        sample_id = _sample_id(row)
        if regenerate and split_variant(sample_id)[1] != 1:
            raise RowError("id ends like that of a variant (#v and a number), which --generate gives itself")
        return _check(row, sample_id, regenerate)
    except RowError as error:
        raise RowError(error.reason, sample_id) from None
    except RecursionError:  # what could be read may still be too deep to be written
        raise RowError("not usable: nested too deeply", sample_id) from None
    except ValueError as error:  # 1e999 is read as infinity, which JSON cannot say
        raise RowError(f"not usable: {error}", sample_id) from None


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
        raise RowError(f"not a JSON object but {kind_of(row)}")
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


def _sample_id(row: Mapping[str, Any]) -> str:
    own = row.get("id")
    if own is None:
        return row_sample_id(row)
    if isinstance(own, bool) or not isinstance(own, str | int):
        raise RowError(f"id must be text or a whole number, not {kind_of(own)}")
    text = str(own)
    if not text.strip():
        raise RowError("id is empty")
    if len(text) > MAX_ID_CHARS:
        raise RowError(f"id has {len(text)} characters, more than {MAX_ID_CHARS}")
    return text


def _check(row: Mapping[str, Any], sample_id: str, regenerate: Regenerate) -> Row:
    named = row.get("id") is not None
    sources = [name for name in _SOURCES if row.get(name) is not None]
    if len(sources) != 1:
        have = f"has {' and '.join(sources)}" if sources else f"has keys {', '.join(sorted(row))[:120] or 'none'}"
        raise RowError(f"needs exactly one of {', '.join(_SOURCES)}; {have}")
    source, mask = sources[0], row.get("loss_mask")
    content = row_content(row) if named else ""
    if mask is not None and source != "input_ids":
        raise RowError("loss_mask counts tokens and goes with input_ids only")
    if source == "input_ids":
        ids = _token_ids(row["input_ids"])
        own = None if mask is None else _mask(mask, len(ids))
        return Row(sample_id, named, content, "input_ids", ids=ids, mask=own, ask=bool(regenerate) and own is None)
    refuse_media(row)
    if source == "text":
        return Row(sample_id, named, content, "text", text=_text("text", row["text"]), ask=bool(regenerate))
    if source == "prompt" and not isinstance(row["prompt"], list):
        ask = regenerate == "all" or (regenerate == "missing" and not _has_response(row))
        text, response = _text("prompt", row["prompt"]), "" if ask else _text("response", _response(row))
        return Row(sample_id, named, content, "prompt", text=text, response=response, ask=ask)
    messages = check_messages(_chat(row, source, regenerate), unanswered=bool(regenerate))
    template = _template_arguments(row)
    if not regenerate or (regenerate == "missing" and messages[-1]["role"] == "assistant"):
        return Row(sample_id, named, content, "messages", messages=messages, template=template)
    every = regenerate == "all"
    return Row(
        sample_id,
        named,
        content,
        "messages",
        messages=to_answer(messages, every=every),
        template=template,
        ask=True,
        regenerate_all=every,
    )


def _chat(row: Mapping[str, Any], source: str, regenerate: Regenerate) -> object:
    """The messages of a row, unchecked."""
    if source == "conversations":
        return sharegpt_messages(row["conversations"], row.get("system"))
    if source == "messages":
        return row["messages"]
    if regenerate and not _has_response(row):
        return row["prompt"]
    response = _response(row)
    if isinstance(response, str):
        response = [{"role": "assistant", "content": _text("response", response)}]
    elif isinstance(response, dict):
        response = [response]
    elif not isinstance(response, list):
        raise RowError(f"response must be text or messages, not {kind_of(response)}")
    return [*row["prompt"], *response]


def _has_response(row: Mapping[str, Any]) -> bool:
    return any(row.get(name) is not None for name in ("response", "completion"))


def _response(row: Mapping[str, Any]) -> object:
    found = [row[name] for name in ("response", "completion") if row.get(name) is not None]
    if len(found) != 1:
        raise RowError("prompt needs a response; give text instead, or let the server answer with --generate")
    return found[0]


def _token_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RowError(f"input_ids must be a list of token ids, not {kind_of(value)}")
    if not value:
        raise RowError("input_ids is empty")
    for at, item in enumerate(value):
        if type(item) is not int:
            raise RowError(f"input_ids holds {kind_of(item)} at token {at}; only whole numbers are token ids")
        if not 0 <= item < 1 << 31:
            raise RowError(f"input_ids holds {item} at token {at}, which is no token id")
    return tuple(value)


def _mask(value: object, n: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise RowError(f"loss_mask must be a list of 0 and 1, not {kind_of(value)}")
    if len(value) != n:
        raise RowError(f"loss_mask has {len(value)} entries for {n} tokens")
    for at, item in enumerate(value):
        if type(item) not in (int, bool) or item not in (0, 1):
            raise RowError(f"loss_mask holds {item!r} at token {at}; only 0 and 1 are allowed"[:200])
    if not any(value):
        raise RowError("loss_mask is all zero: nothing to train on")
    return tuple(int(item) for item in value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RowError(f"{name} must be a string, not {kind_of(value)}")
    if not value.strip():
        raise RowError(f"{name} is empty" if not value else f"{name} is only white space")
    return value


def _template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    extra = row.get("chat_template_kwargs")
    if extra is not None and not isinstance(extra, dict):
        raise RowError(f"chat_template_kwargs must be an object, not {kind_of(extra)}")
    tools = check_tools(row.get("tools"))
    taken = TEMPLATE_TAKEN & set(extra or {})
    if taken:
        raise RowError(f"chat_template_kwargs may not hold {', '.join(sorted(taken))}")
    return {**(extra or {}), **({} if tools is None else {"tools": tools})}
