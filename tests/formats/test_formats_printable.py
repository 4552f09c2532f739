"""What acts on a terminal is shown, whatever the text; what does not is left alone."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, strategies as st

from hs_formats.printable import printable


@given(st.text(st.characters()))
def test_nothing_acts_and_twice_is_once(text: str) -> None:
    shown = printable(text)
    assert {c for c in shown if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}} <= {"\n", "\t"}
    assert printable(shown) == shown
    shown.encode("utf-8")


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs", "M"])))
def test_words_of_every_script_are_left_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b]0;b\x07", r"a\x1b]0;b\x07"),
        ("a\rb\nc\td", "a\\rb\nc\td"),
        ("abc\u202ecba\u2028\x9b", r"abc\u202ecba\u2028\x9b"),
        ("\ud800 and 日本 👩‍👩‍👧", r"\ud800 and 日本 👩‍👩‍👧"),
    ],
    ids=["title", "feeds", "direction", "surrogate"],
)
def test_examples(text: str, shown: str) -> None:
    assert printable(text) == shown
