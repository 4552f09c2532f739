"""Rows: what is taken, what is rejected and in which words; lines split on LF only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hs_client.input_files import InputFile
from hs_client.lines import read_lines
from hs_client.row_error import RowError
from hs_client.rows import Row, parse_row

_TEXT = st.text(min_size=1).filter(str.strip)
_IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)
_GOOD = st.one_of(
    st.fixed_dictionaries({"text": _TEXT}),
    st.fixed_dictionaries({"input_ids": _IDS}),
    st.fixed_dictionaries(
        {"messages": st.just([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])}
    ),
)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "a"', "not JSON"),
        (b'{"text": "\xe6"}', "not UTF-8: byte 0xe6 at position 10"),
        (b'{"text": "\\ud83d"}', "lone surrogate"),
        (b'{"text": NaN}', "NaN is no number"),
        (b'{"text": "a", "text": "b"}', "key 'text' appears twice"),
        (b'{"a": {"b": 1, "b": 2}, "text": "a"}', "key 'b' appears twice"),
        (b"[1]", "not a JSON object but a list"),
        (b"3", "not a JSON object but a number"),
        (b"{}", "needs exactly one of input_ids, text, prompt, messages, conversations; has keys none"),
        (b'{"prompt": ""}', "prompt is empty"),
        (b'{"prompt": "a"}', "prompt needs a response"),
        (b'{"prompt": "a", "response": "b", "completion": "c"}', "prompt needs a response"),
        (b'{"prompt": "a", "response": " "}', "response is only white space"),
        (b'{"prompt": [{"role": "user", "content": "a"}], "response": 3}', "response must be text or messages"),
        (b'{"text": "a", "input_ids": [1]}', "has input_ids and text"),
        (b'{"text": ""}', "text is empty"),
        (b'{"text": " \\n "}', "only white space"),
        (b'{"text": 3}', "text must be a string, not a number"),
        (b'{"messages": []}', "messages is empty"),
        (b'{"messages": "a"}', "messages must be a list"),
        (b'{"messages": ["a"]}', "message 0 is a string"),
        (b'{"messages": [{"content": "a"}]}', "message 0 has no role"),
        (b'{"messages": [{"role": "user", "content": "a"}]}', "no message is of the assistant"),
        (b'{"messages": [{"role": "assistant"}]}', "content must be text, not null"),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}',
            "multimodal input is not supported",
        ),
        (b'{"input_ids": []}', "input_ids is empty"),
        (b'{"input_ids": [1, 2.0]}', "holds a number at token 1; only whole numbers"),
        (b'{"input_ids": [true]}', "holds true or false at token 0"),
        (b'{"input_ids": [-1]}', "holds -1 at token 0"),
        (b'{"input_ids": [4294967296]}', "no token id"),
        (b'{"input_ids": [1, 2], "loss_mask": [1]}', "loss_mask has 1 entries for 2 tokens"),
        (b'{"input_ids": [1, 2], "loss_mask": [1, 2]}', "holds 2 at token 1"),
        (b'{"input_ids": [1, 2], "loss_mask": [0, 0]}', "all zero"),
        (b'{"text": "a", "loss_mask": [1]}', "goes with input_ids only"),
        (b'{"text": "a", "id": ""}', "id is empty"),
        (b'{"text": "a", "id": 1.5}', "id must be text or a whole number"),
        (b'{"text": "a", "id": "' + b"x" * 600 + b'"}', "600 characters"),
        (b'{"text": ' + b"[" * 100_000 + b"}", "nested too deeply"),
        (b'{"input_ids": [' + b"9" * 5000 + b"]}", "not usable"),
        (b'{"input_ids": [1], "score": 1e999}', "not usable: Out of range float"),
        (
            b'{"id": "a", "messages": [{"role": "user", "content": "x", "at": -1e999}]}',
            "not usable: Out of range float",
        ),
        (b'{"text": "a", "id": 1, "messages": null, "input_ids": [1]}', "has input_ids and text"),
    ],
)
def test_a_bad_row_is_rejected_with_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_row(line)
    assert reason in caught.value.reason


def test_the_reason_comes_with_the_sample_id_once_that_is_known() -> None:
    with pytest.raises(RowError) as caught:
        parse_row(b'{"id": "seven", "text": ""}')
    assert caught.value.sample_id == "seven"


def test_text_parts_are_joined_and_null_counts_as_absent() -> None:
    row = parse_row(
        b'{"id": 7, "text": null, "messages": [{"role": "assistant",'
        b' "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}'
    )
    assert (row.sample_id, row.named, row.messages[0]["content"]) == ("7", True, "ab")


@given(_GOOD)
def test_a_row_without_id_is_named_by_its_content_whatever_the_spelling(row: dict[str, Any]) -> None:
    spaced = json.dumps(dict(reversed(row.items())), indent=1).replace("\n", " ").encode()
    plain = json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        parsed = parse_row(plain)
    except RowError:
        return  # hypothesis found a surrogate
    assert parsed.sample_id == parse_row(spaced).sample_id
    assert isinstance(parsed, Row)
    assert not parsed.named


@given(st.binary(max_size=200))
def test_any_bytes_give_a_row_or_a_reason(line: bytes) -> None:
    reason = "none"
    try:
        parse_row(line)
    except RowError as error:
        reason = error.reason
    assert reason
    assert "\n" not in reason


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), max_size=30), max_size=8), st.booleans()
)
def test_lines_end_at_lf_only(tmp_path_factory: pytest.TempPathFactory, texts: list[str], bom: bool) -> None:
    path = tmp_path_factory.mktemp("lines") / "f"
    texts = [text.removeprefix("\ufeff") for text in texts]
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + "\r\n".join(texts).encode())
    lines = list(read_lines(InputFile.of(path)))
    assert [(line.number, line.data) for line in lines] == [
        (number, text.encode()) for number, text in enumerate(texts, 1) if text.encode().strip()
    ]


def test_unicode_line_separators_stay_in_the_string(tmp_path: Path) -> None:
    path = tmp_path / "f"
    text = "a\u2028b\u2029c\u0085d"
    path.write_text(json.dumps({"text": text}, ensure_ascii=False) + "\n", encoding="utf-8")
    (line,) = read_lines(InputFile.of(path))
    assert line.data is not None
    assert parse_row(line.data).text == text


@pytest.mark.parametrize("extra", [-2, -1, 0, 1, 2, 5000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b""])
def test_a_line_over_the_cap_is_skipped_and_the_next_one_read(tmp_path: Path, extra: int, end: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * (1000 + extra) + end + (b"next\n" if end else b""))
    first, *rest = read_lines(InputFile.of(path), max_bytes=1000)
    assert (first.data is None) == (extra > 0)
    assert [line.data for line in rest] == ([b"next"] if end else [])
    assert [line.number for line in rest] == ([2] if end else [])
