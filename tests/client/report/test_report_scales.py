"""Axes and numbers of the report's charts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from hs_client.report.scales import (
    Axis,
    linear_axis,
    log_axis,
    show_number,
    show_short,
    show_span,
    show_time,
    time_axis,
)


def check(axis: Axis) -> None:
    assert axis.low < axis.high
    values = [value for value, _ in axis.ticks]
    assert values == sorted(set(values))
    assert all(axis.low <= value <= axis.high * (1 + 1e-12) for value in values)
    assert axis.at(axis.low) == 0
    assert axis.at(axis.high) == pytest.approx(1)
    texts = [text for _, text in axis.ticks]
    assert len(set(texts)) == len(texts), "two ticks read alike"


@given(st.floats(1e-6, 1e15))
def test_linear_axes_reach_the_value_with_few_round_ticks(high: float) -> None:
    axis = linear_axis("x", high)
    check(axis)
    assert axis.low == 0
    assert high <= axis.high * (1 + 1e-9)
    assert axis.high <= 2.5 * high
    assert 3 <= len(axis.ticks) <= 7


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_linear_axes_need_not_start_at_zero(low: int, span: int) -> None:
    axis = linear_axis("x", float(low + span), low=float(low), show=repr)
    check(axis)
    assert axis.low <= low
    assert axis.high >= (low + span) * (1 - 1e-9)


@given(st.floats(1e-9, 1e9), st.floats(1, 1e12))
def test_log_axes_hold_their_ends(low: float, factor: float) -> None:
    axis = log_axis("x", low, low * factor)
    check(axis)
    assert axis.low <= low * (1 + 1e-6)
    assert axis.high * (1 + 1e-6) >= low * factor
    assert len(axis.ticks) <= 8
    assert axis.at(math.sqrt(axis.low * axis.high)) == pytest.approx(0.5)


@given(st.floats(0, 1e8))
def test_time_axes_end_where_the_run_ends(seconds: float) -> None:
    axis = time_axis("t", seconds)
    check(axis)
    assert axis.high == max(1.0, seconds)
    assert len(axis.ticks) <= 10


def test_values_beyond_an_axis_lie_at_its_end() -> None:
    axis = linear_axis("x", 10.0)
    assert [axis.at(-5), axis.at(5), axis.at(99)] == [0, 0.5, 1]


@pytest.mark.parametrize(
    ("value", "number", "short"),
    [
        (0, "0", "0"),
        (1234.5, "1,234", "1.23 k"),
        (12.34, "12.3", "12.3"),
        (0.00123, "0.00123", "0.00123"),
        (99.96, "100", "100"),
        (2_000_000, "2,000,000", "2 M"),
        (1e-7, "1.0e-07", "1.0e-07"),
        (-3.5, "-3.5", "-3.5"),
    ],
)
def test_numbers_read_well(value: float, number: str, short: str) -> None:
    assert show_number(value) == number
    assert show_short(value) == short


@given(st.integers(1, 10**6))
def test_counts_have_no_ticks_between_whole_numbers(most: int) -> None:
    axis = linear_axis("samples", float(most), whole=True)
    check(axis)
    assert axis.high >= most
    assert len(axis.ticks) >= 2
    assert all(value == int(value) for value, _ in axis.ticks)


def test_times_of_day_read_well() -> None:
    assert show_time("2026-01-02T03:04:05.678+00:00") == "2026-01-02 03:04:05"
    assert show_time("2026-01-02T03:04:05+02:00") == "2026-01-02 01:04:05"
    assert [show_time("T4"), show_time("")] == ["T4", "not known"]


def test_times_read_well() -> None:
    assert [show_span(seconds) for seconds in (0, 30, 90, 5400, 129_600)] == [
        "0 s",
        "30 s",
        "1.5 min",
        "1.5 h",
        "1.5 d",
    ]
