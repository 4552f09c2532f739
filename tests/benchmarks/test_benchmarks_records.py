"""Records put together from parts, and compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.equality.case import prompt_lengths
from benchmarks.records import Comparison, Record, find_parts, read_record, relative_error, wait_for_records
from hypothesis import given, settings, strategies as st

from parts import drop_part, random_states

RID = "hs-0123abcd-00000000-00"


def _record(bits: np.ndarray, dtype: str = "bfloat16") -> Record:
    return Record(bits, dtype, np.arange(len(bits), dtype=np.int64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_record_is_its_parts_in_order(tmp_path: Path, dtype: str) -> None:
    states = random_states((7, 3, 8), dtype, seed=1)
    for start, stop in ((4, 7), (0, 4)):
        drop_part(tmp_path, RID, start, stop, 7, dtype=dtype, states=states[start:stop])
    assert wait_for_records(tmp_path, {RID: 7}, ranks=[0], each=True, timeout_s=0) == []
    assert wait_for_records(tmp_path, {RID: 8}, ranks=[0], each=True, timeout_s=0) == [RID]
    assert wait_for_records(tmp_path, {RID: 7}, ranks=[0, 1], each=True, timeout_s=0) == [RID]
    record = read_record(tmp_path, find_parts(tmp_path)[RID, 0])
    assert record.dtype == dtype
    assert np.array_equal(record.bits, states.view(record.bits.dtype))
    assert record.input_ids.tolist() == list(range(7))


def test_shares_of_ranks_make_a_record_together(tmp_path: Path) -> None:
    drop_part(tmp_path, RID, 0, 2, 5, rank=0)
    drop_part(tmp_path, RID, 2, 5, 5, rank=1)
    assert wait_for_records(tmp_path, {RID: 5}, ranks=[0, 1], each=False, timeout_s=0) == []
    assert wait_for_records(tmp_path, {RID: 5}, ranks=[0, 1], each=True, timeout_s=0) == [RID]


def test_one_unit_in_the_last_place_is_seen_where_it_is() -> None:
    bits = random_states((6, 3, 8), "bfloat16", seed=2)
    other = bits.copy()
    row, column = np.unravel_index(np.abs((bits[:, 1].astype(np.uint32) << 16).view(np.float32)).argmax(), (6, 8))
    other[row, 1, column] ^= 1
    comparison = Comparison()
    comparison.add("same", _record(bits), _record(bits))
    comparison.add("other", _record(other), _record(bits))
    assert (comparison.records, comparison.bit_equal, comparison.tokens) == (2, 1, 12)
    assert comparison.max_ulp == [0.0, 1.0, 0.0]
    assert 0 < comparison.max_relative[1] < 0.01
    assert comparison.different == ["other, 6 tokens"]


def test_other_ids_or_shapes_are_no_equality() -> None:
    bits = random_states((4, 2, 8), "float32", seed=3)
    comparison = Comparison()
    comparison.add("ids", Record(bits, "float32", np.zeros(4, np.int64)), _record(bits, "float32"))
    comparison.add("shape", _record(bits[:3], "float32"), _record(bits, "float32"))
    assert comparison.bit_equal == 0
    assert max(comparison.max_relative) == 1.0


def test_merged_comparisons_are_one() -> None:
    a, b = random_states((4, 2, 8), "bfloat16", seed=4), random_states((4, 2, 8), "bfloat16", seed=5)
    whole, left, right = Comparison(), Comparison(), Comparison()
    for into in (whole, left):
        into.add("x", _record(a), _record(a))
    for into in (whole, right):
        into.add("y", _record(a), _record(b))
    left.merge(right)
    assert left == whole
    empty = Comparison()
    empty.merge(right)
    assert empty == right


def test_relative_error_of_a_doubled_state_is_one() -> None:
    bits = random_states((4, 8), "float32", seed=6)
    doubled = (bits.view(np.float32) * 2).view(np.uint32)
    assert relative_error(doubled, bits.view(np.uint32), "float32") == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 120), st.integers(1, 9000), st.integers(0, 99))
def test_lengths_are_in_range_and_repeat(count: int, longest: int, seed: int) -> None:
    lengths = prompt_lengths(count, longest, seed=seed)
    assert len(lengths) == count
    assert all(1 <= n <= longest for n in lengths)
    assert lengths == prompt_lengths(count, longest, seed=seed)
    if count >= 4:
        assert {1, longest} <= set(lengths)
