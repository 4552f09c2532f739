"""Ratios and their intervals."""

from __future__ import annotations

import pytest
from benchmarks.sampling import paired_ratio, ratio_of_medians
from hypothesis import given, settings, strategies as st

RATES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(RATES)
def test_equal_blocks_have_ratio_one(rates: list[float]) -> None:
    ratio = paired_ratio(rates, rates)
    assert (ratio.value, ratio.low, ratio.high, ratio.samples) == (1.0, 1.0, 1.0, len(rates))


@settings(max_examples=25, deadline=None)
@given(RATES, st.data())
def test_intervals_hold_the_samples_and_repeat(rates: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(1.0, 1e6), min_size=len(rates), max_size=len(rates)))
    for estimate in (paired_ratio, ratio_of_medians):
        ratio = estimate(rates, others)
        assert ratio.low <= ratio.value <= ratio.high
        assert ratio == estimate(rates, others)
    ratios = [a / b for a, b in zip(rates, others, strict=True)]
    assert min(ratios) <= paired_ratio(rates, others).value <= max(ratios)


def test_a_drift_of_the_machine_cancels_in_pairs_only() -> None:
    speed = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    capturing = [0.99 * value for value in speed]
    paired = paired_ratio(capturing, speed)
    assert paired.value == pytest.approx(0.99)
    assert paired.high - paired.low < 1e-9
    free = ratio_of_medians(capturing, speed)
    assert free.high - free.low > 0.1


@pytest.mark.parametrize("estimate", [paired_ratio, ratio_of_medians])
def test_nothing_measured_is_no_ratio(estimate: object) -> None:
    with pytest.raises(ValueError, match="measured"):
        estimate([], [])  # type: ignore[operator]
