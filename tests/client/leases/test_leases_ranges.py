"""Ranges against a plain set of numbers."""

from __future__ import annotations

import itertools

from hypothesis import given, strategies as st

from hs_client.leases.ranges import Ranges

NUMBERS = st.integers(0, 40)
PAIRS = st.tuples(NUMBERS, NUMBERS)


def numbers(ranges: Ranges) -> set[int]:
    return {row for start, stop in ranges for row in range(start, stop)}


def whole(ranges: Ranges) -> None:
    """Sorted, not empty, neither overlapping nor touching; counted right."""
    found = list(ranges)
    assert all(start < stop for start, stop in found)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))
    assert ranges.rows == sum(stop - start for start, stop in found)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), PAIRS), max_size=30), PAIRS)
def test_it_is_a_set_of_numbers(steps: list[tuple[str, tuple[int, int]]], asked: tuple[int, int]) -> None:
    ranges, model = Ranges(), set[int]()
    for what, pair in steps:
        if what == "add":
            ranges.add(*pair)
            model |= set(range(*pair))
        else:
            ranges.remove(*pair)
            model -= set(range(*pair))
        whole(ranges)
        assert numbers(ranges) == model
    assert ranges.covers(*asked) == (set(range(*asked)) <= model)
    assert all((row in ranges) == (row in model) for row in range(41))
    assert bool(ranges) == bool(model)
    again = Ranges((row, row + 1) for row in sorted(model, reverse=True))
    assert again == ranges
    assert again != Ranges([(50, 51), *ranges])


@given(st.lists(PAIRS, max_size=10), st.integers(-1, 50))
def test_what_is_taken_is_the_first_range_or_the_last_numbers(pairs: list[tuple[int, int]], count: int) -> None:
    ranges, model = Ranges(pairs), sorted(numbers(Ranges(pairs)))
    first = ranges.take_first(count)
    if not model or count < 1:
        assert first is None
    else:
        assert first is not None
        start, stop = first
        assert start == model[0]
        assert 0 < stop - start <= count
        assert stop - start == count or stop not in model
        assert set(model) - set(range(*first)) == numbers(ranges)
    whole(ranges)

    ranges = Ranges(pairs)
    last = ranges.take_last(count)
    taken = [row for pair in last for row in range(*pair)]
    assert taken == model[max(0, len(model) - max(0, count)) :]
    assert numbers(ranges) == set(model) - set(taken)
    whole(ranges)
    ranges.clear()
    assert (list(ranges), ranges.rows) == ([], 0)
