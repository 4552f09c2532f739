from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st

from hs_formats.boundaries import boundary_table, default_boundaries, parse_ids, resolve_boundaries
from hs_formats.errors import FormatError


@given(st.integers(1, 200), st.lists(st.integers(-3, 203), max_size=6))
def test_resolve_gives_ascending_inner_boundaries_or_says_why(num_layers: int, picked: list[int]) -> None:
    valid = bool(picked) and len(set(picked)) == len(picked) and all(0 < b < num_layers for b in picked)
    if valid:
        assert resolve_boundaries(num_layers, boundaries=picked) == tuple(sorted(picked))
        assert resolve_boundaries(num_layers, eagle_ids=[b - 1 for b in picked]) == tuple(sorted(picked))
    else:
        with pytest.raises(FormatError):
            resolve_boundaries(num_layers, boundaries=picked)


def test_the_kimi_profile_in_both_numberings() -> None:
    assert resolve_boundaries(61, boundaries=[3, 31, 59]) == (3, 31, 59)
    assert resolve_boundaries(61, eagle_ids=[2, 30, 58]) == (3, 31, 59)
    assert resolve_boundaries(61) == (2, 30, 58)


@pytest.mark.parametrize("num_layers", range(1, 7))
def test_the_default_pick_of_a_tiny_model_is_refused_with_the_list(num_layers: int) -> None:
    with pytest.raises(FormatError, match=re.escape(str(list(default_boundaries(num_layers))))):
        resolve_boundaries(num_layers)


def test_the_first_model_that_the_default_fits() -> None:
    assert resolve_boundaries(7) == (2, 3, 4)


def test_both_numberings_at_once_are_refused() -> None:
    with pytest.raises(FormatError, match="not both"):
        resolve_boundaries(8, boundaries=[1], eagle_ids=[0])


@given(st.lists(st.integers(-99, 999), min_size=1, max_size=5))
def test_parse_ids_reads_what_is_printed(values: list[int]) -> None:
    assert parse_ids(", ".join(str(value) for value in values)) == tuple(values)


@pytest.mark.parametrize("text", ["", ",", "1,", "1 2", "1.0", "1_0", "\uff13", "x", "1,,2", "+1", "0x1", "9" * 5000])
def test_parse_ids_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        parse_ids(text)


@given(st.integers(2, 80), st.data())
def test_the_table_holds_the_boundaries_and_their_ids_minus_one(num_layers: int, data: st.DataObject) -> None:
    picked = data.draw(st.lists(st.integers(1, num_layers - 1), min_size=1, max_size=4, unique=True))
    boundaries = resolve_boundaries(num_layers, boundaries=picked)
    table = boundary_table(boundaries, num_layers)
    assert str(list(boundaries)) in table[1]
    assert str([b - 1 for b in boundaries]) in table[2]
    config_ids = re.search(r"\[[0-9, ]+\]", table[4])
    if boundaries[0] == 1:
        assert config_ids is None
    else:
        assert config_ids is not None
        ids = [int(value) for value in re.findall(r"[0-9]+", config_ids[0])]
        served = [i + 1 for i in ids] if ids[0] == 1 else ids  # DeepSeek's rule from SGLang 0.5.13 on
        assert served == list(boundaries)
