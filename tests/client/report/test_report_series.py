"""From timelines to intervals: nothing is lost, doubled or invented."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from hs_client.report.series import PARTIES, histogram, intervals, stored_rates, waited_shares
from hs_formats.timeline import TimelinePoint


@st.composite
def timelines(draw: st.DrawFn) -> list[TimelinePoint]:
    points: list[TimelinePoint] = []
    at_s = done = tokens = answered = 0.0
    waited: dict[str, float] = dict.fromkeys(PARTIES, 0.0)
    for _ in range(draw(st.integers(2, 60))):
        points.append(
            TimelinePoint(
                at="",
                run_s=at_s,
                done=int(done),
                tokens=int(tokens),
                answered=int(answered),
                used_bytes=draw(st.integers(0, 10**12)),
                p50_s=draw(st.floats(0, 9)),
                p95_s=draw(st.floats(9, 99)),
                waited_s=dict(waited),
            )
        )
        step_s = draw(st.floats(0.01, 100))
        at_s += step_s
        done += draw(st.integers(0, 50))
        tokens += draw(st.integers(0, 5000))
        answered += draw(st.integers(0, 50))
        waited[draw(st.sampled_from(PARTIES))] += step_s * draw(st.floats(0, 1))
    return points


@given(timelines(), st.integers(1, 20))
def test_intervals_tile_the_run_and_keep_its_sums(points: list[TimelinePoint], most: int) -> None:
    found = intervals(points, most=most)
    assert 1 <= len(found) <= most + 1
    assert found[0].start_s == points[0].run_s
    assert found[-1].stop_s == points[-1].run_s
    assert all(before.stop_s == after.start_s for before, after in itertools.pairwise(found))
    tokens = sum(span.tokens_per_s * (span.stop_s - span.start_s) for span in found)
    samples = sum(span.samples_per_s * (span.stop_s - span.start_s) for span in found)
    assert tokens == pytest.approx(points[-1].tokens - points[0].tokens)
    assert samples == pytest.approx(points[-1].done - points[0].done)
    assert max(span.used_bytes for span in found) == max(point.used_bytes for point in points[1:])
    for span in found:
        assert sum(span.waited) <= 1 + 1e-9
        assert (span.p50_s is None) == (span.p95_s is None)
    whole = waited_shares(points[0], points[-1])
    for number in range(len(PARTIES)):
        part = sum(span.waited[number] * (span.stop_s - span.start_s) for span in found)
        assert part == pytest.approx(whole[number] * (points[-1].run_s - points[0].run_s), abs=1e-6)


def test_the_middle_is_weighted_by_answers() -> None:
    points = [
        TimelinePoint(at="", run_s=0.0),
        TimelinePoint(at="", run_s=1.0, answered=30, p50_s=1.0, p95_s=2.0),
        TimelinePoint(at="", run_s=2.0, answered=40, p50_s=5.0, p95_s=7.0),
        TimelinePoint(at="", run_s=3.0, answered=40),
    ]
    (span,) = intervals(points, most=1)
    assert (span.p50_s, span.p95_s) == (2.0, 7.0)
    assert [each.p50_s for each in intervals(points)] == [1.0, 5.0, None]


def test_a_clock_that_stands_still_or_a_single_line_makes_no_interval() -> None:
    still = [TimelinePoint(at="", run_s=1.0, tokens=number) for number in range(3)]
    assert intervals([]) == intervals(still[:1]) == intervals(still) == []


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 5000)), max_size=50))
def test_rates_from_the_manifest_keep_all_tokens(stored: list[tuple[float, int]]) -> None:
    rates = stored_rates(stored, most=7)
    times = [at_s for at_s, _ in stored]
    if len(stored) < 2 or max(times) <= min(times):
        assert rates == []
        return
    assert len(rates) <= 7
    assert sum((stop - start) * rate for start, stop, rate in rates) == pytest.approx(sum(n for _, n in stored))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=60), st.integers(1, 40))
def test_every_length_is_in_one_bin(lengths: list[int], most: int) -> None:
    bins = histogram(lengths, most=most)
    assert 1 <= len(bins) <= most
    assert all(before.high == after.low for before, after in itertools.pairwise(bins))
    for each in bins:
        assert each.count == sum(each.low <= length < each.high for length in lengths)
    assert sum(each.count for each in bins) == len(lengths)
    assert bins[0].count > 0
    assert bins[-1].count > 0
