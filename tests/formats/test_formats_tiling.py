from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from hs_formats.errors import FormatError
from hs_formats.mask import mask_to_spans, spans_to_mask, supervised
from hs_formats.tiling import cover, record_complete

RANGES = st.lists(
    st.tuples(st.integers(0, 14), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])), max_size=7
)


@given(st.integers(1, 14), RANGES)
def test_cover_agrees_with_counting_each_row(n: int, ranges: list[tuple[int, int]]) -> None:
    counts = [0] * 32
    for start, stop in ranges:
        for row in range(start, stop):
            counts[row] += 1
    found = cover(n, ranges)
    assert found.exact == (all(count == 1 for count in counts[:n]) and not any(counts[n:]))
    missing = {row for start, stop in found.gaps for row in range(start, stop)}
    assert {row for row in missing if row < n} == {row for row in range(n) if counts[row] == 0}
    doubled = {row for start, stop in found.overlaps for row in range(start, stop)}
    assert {row for row in doubled if row < n} == {row for row in range(n) if counts[row] > 1}


@given(st.integers(1, 40), st.lists(st.integers(1, 39), unique=True), st.randoms(use_true_random=False))
def test_any_cutting_in_any_order_and_by_any_ranks_tiles(n: int, cuts: list[int], random: object) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < n), n]
    parts = [(at % 3, a, b) for at, (a, b) in enumerate(itertools.pairwise(edges))]
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert record_complete(n, parts, writers="first", expected_ranks=[0])
    assert record_complete(n, iter(parts), writers="spread", expected_ranks=[0, 1, 2])
    assert not record_complete(n, parts[1:], writers="spread", expected_ranks=[0, 1, 2])
    assert not record_complete(n, [*parts, parts[0]], writers="first", expected_ranks=[0])
    assert not record_complete(n + 1, parts, writers="first", expected_ranks=[0])


@given(st.integers(1, 20), st.sets(st.integers(0, 5), min_size=1), st.data())
def test_all_needs_every_expected_rank(n: int, ranks: set[int], data: st.DataObject) -> None:
    parts = []
    for rank in ranks:
        cut = data.draw(st.integers(0, n - 1))
        parts += [(rank, a, b) for a, b in ((0, cut), (cut, n)) if a < b]
    expected = sorted(ranks)
    assert record_complete(n, parts, writers="all", expected_ranks=expected)
    gone = data.draw(st.sampled_from(parts))
    assert not record_complete(n, [p for p in parts if p != gone], writers="all", expected_ranks=expected)
    assert not record_complete(n, parts, writers="all", expected_ranks=[*expected, 9])
    assert not record_complete(n, [*parts, (9, 0, n + 1)], writers="all", expected_ranks=expected)


@pytest.mark.parametrize("writers", ["first", "spread", "all"])
def test_no_parts_are_no_record(writers: str) -> None:
    assert not record_complete(1, [], writers=writers, expected_ranks=[])  # type: ignore[arg-type]
    assert not record_complete(0, [], writers=writers, expected_ranks=[])  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 1) | st.booleans(), max_size=60))
def test_mask_spans_round_trip(mask: list[int]) -> None:
    spans = mask_to_spans(mask)
    assert list(spans_to_mask(spans, len(mask))) == [int(value) for value in mask]
    assert supervised(spans) == sum(mask)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(spans))


@pytest.mark.parametrize("mask", [[2], [0, -1], [0.5], ["1"], [None]])
def test_other_mask_values_are_refused(mask: list[int]) -> None:
    with pytest.raises(FormatError, match="token"):
        mask_to_spans(mask)


@pytest.mark.parametrize("spans", [[(0, 0)], [(-1, 1)], [(0, 5)], [(2, 3), (0, 1)], [(0, 2), (1, 3)], [(3, 2)]])
def test_spans_that_do_not_fit_are_refused(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(FormatError):
        spans_to_mask(spans, 4)
