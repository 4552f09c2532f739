from __future__ import annotations

import os

import pytest
from hypothesis import given, strategies as st

from hs_formats.errors import FormatError
from hs_formats.names import (
    MAX_ATTEMPT,
    MAX_GENERATION,
    MAX_RANK,
    MAX_ROW,
    MAX_TOKENS,
    PartName,
    Rid,
    generation_rid,
    is_nonce,
    is_run_id,
    parse_temporary,
    part_prefix,
    temporary_name,
)

RUNS = st.integers(0, 2**32 - 1).map(lambda value: f"{value:08x}")
RIDS = st.builds(Rid, RUNS, st.integers(0, MAX_ROW), st.integers(0, MAX_ATTEMPT))
NONCES = st.integers(0, 2**64 - 1).map(lambda value: f"{value:016x}")


@st.composite
def part_names(draw: st.DrawFn) -> PartName:
    n = draw(st.integers(1, MAX_TOKENS))
    start = draw(st.integers(0, n - 1))
    return PartName(draw(RIDS), start, draw(st.integers(start + 1, n)), n, draw(st.integers(0, MAX_RANK)))


@given(RIDS)
def test_rid_round_trip(rid: Rid) -> None:
    assert Rid.parse(str(rid)) == rid
    assert Rid.matches(str(rid))


@given(RIDS, RIDS)
def test_no_rid_is_a_prefix_of_another_and_text_sorts_as_fields(one: Rid, other: Rid) -> None:
    assert str(one).startswith(str(other)) == (one == other)
    assert (str(one) < str(other)) == (one < other)


@given(RIDS, RUNS, st.integers(0, MAX_GENERATION), RUNS, st.integers(0, MAX_GENERATION))
def test_requests_for_answers_and_for_capture_never_begin_alike(
    rid: Rid, run: str, number: int, other_run: str, other: int
) -> None:
    asked = generation_rid(run, number)
    assert not Rid.matches(asked)
    with pytest.raises(FormatError):
        Rid.parse(asked)
    assert PartName.try_parse(f"{asked}.t0000000-0000001of0000001.r00.pt") is None
    assert not asked.startswith(str(rid))
    assert not str(rid).startswith(asked)
    second = generation_rid(other_run, other)
    assert second.startswith(asked) == ((run, number) == (other_run, other))
    assert not generation_rid(rid.run, number).startswith(part_prefix(rid.run)), "nor like the parts of a run"


@pytest.mark.parametrize(("run", "number"), [("0000abc", 1), ("0000abcd", -1), ("0000abcd", MAX_GENERATION + 1)])
def test_no_request_for_an_answer_out_of_range(run: str, number: int) -> None:
    with pytest.raises(FormatError):
        generation_rid(run, number)


@given(part_names(), NONCES)
def test_part_name_round_trip(name: PartName, nonce: str) -> None:
    text = str(name)
    assert PartName.parse(text) == name
    assert PartName.try_parse(text) == name
    assert name.rows == name.stop - name.start
    temporary = temporary_name(name, nonce)
    assert temporary.startswith(".")
    assert temporary.endswith(".tmp")
    assert parse_temporary(temporary) == (name, nonce)
    assert PartName.try_parse(temporary) is None
    assert parse_temporary(text) is None


@given(part_names(), part_names())
def test_parts_sort_by_name_as_by_fields(one: PartName, other: PartName) -> None:
    assert (str(one) == str(other)) == (one == other)


@given(part_names(), st.data())
def test_one_changed_character_is_another_name_or_none(name: PartName, data: st.DataObject) -> None:
    text = str(name)
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters(exclude_characters=text[at])) + text[at + 1 :]
    parsed = PartName.try_parse(changed)
    assert parsed is None or (parsed != name and str(parsed) == changed)


@given(st.text() | st.binary().map(os.fsdecode))
def test_any_text_is_refused_or_exactly_itself(text: str) -> None:
    parsed = PartName.try_parse(text)
    assert parsed is None or str(parsed) == text
    temporary = parse_temporary(text)
    assert temporary is None or temporary_name(*temporary) == text
    if Rid.matches(text):
        assert str(Rid.parse(text)) == text
    else:
        with pytest.raises(FormatError):
            Rid.parse(text)


GOOD = "hs-0000abcd-00000001-00.t0000000-0000004of0000004.r00.pt"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        f"../{GOOD}",
        f"a/{GOOD}",
        f"{GOOD}\n",
        f"\n{GOOD}",
        f"{GOOD}\0",
        f" {GOOD}",
        f"-rf {GOOD}",
        GOOD.replace("hs-", "HS-"),
        GOOD.replace("0000abcd", "0000ABCD"),
        GOOD.replace("00000001", "0000000١"),  # an Arabic-Indic digit
        GOOD.replace("0000004of", "0000000of"),  # stop = start
        GOOD.replace("of0000004", "of0000003"),  # stop > n
        GOOD.replace(".pt", ".pt.zst"),
        GOOD.replace(".pt", ".pth"),
        GOOD.replace("t0000000", "t000000"),
        GOOD + "x" * 300,
        "psm_12345678",
        os.fsdecode(b"\xff.pt"),
    ],
)
def test_hostile_part_names(text: str) -> None:
    assert PartName.try_parse(text) is None
    with pytest.raises(FormatError):
        PartName.parse(text)


def test_the_good_name_is_good() -> None:
    assert PartName.parse(GOOD) == PartName(Rid("0000abcd", 1, 0), 0, 4, 4, 0)


@pytest.mark.parametrize(
    ("run", "row", "attempt"),
    [
        ("0000ABCD", 0, 0),
        ("abc", 0, 0),
        ("0000abcd\n", 0, 0),
        ("0000abcd", -1, 0),
        ("0000abcd", MAX_ROW + 1, 0),
        ("0000abcd", 0, -1),
        ("0000abcd", 0, MAX_ATTEMPT + 1),
    ],
)
def test_rid_fields_are_bounded(run: str, row: int, attempt: int) -> None:
    with pytest.raises(FormatError):
        Rid(run, row, attempt)


@pytest.mark.parametrize(
    ("start", "stop", "n", "rank"),
    [(0, 0, 1, 0), (1, 1, 1, 0), (-1, 1, 1, 0), (0, 2, 1, 0), (0, 1, MAX_TOKENS + 1, 0), (0, 1, 1, -1), (0, 1, 1, 100)],
)
def test_part_fields_are_bounded(start: int, stop: int, n: int, rank: int) -> None:
    with pytest.raises(FormatError):
        PartName(Rid("0000abcd", 0, 0), start, stop, n, rank)


def test_nonces_and_run_ids() -> None:
    assert is_run_id("0123abcd")
    assert not is_run_id("0123abcd\n")
    assert is_nonce("0123456789abcdef")
    assert not is_nonce("0123456789ABCDEF")
    with pytest.raises(FormatError):
        temporary_name(PartName.parse(GOOD), "../../../../evil")
