"""Packing rows into blocks: every row gets a place of its own, in order, with the fewest copies."""

from __future__ import annotations

import itertools
import threading

import torch
from hypothesis import given, strategies as st

from hs_server.capture.backends import HostBackend
from hs_server.capture.blocks import coalesce, pack_blocks
from hs_server.capture.copy_path import MAX_BLOCK_BYTES, ring_shape
from hs_server.capture.plan import RowSlice
from hs_server.capture.ring import HostRing


@st.composite
def pieces(draw: st.DrawFn) -> list[RowSlice]:
    made: list[RowSlice] = []
    at = 0
    for index in range(draw(st.integers(0, 8))):
        at += draw(st.integers(0, 3))  # rows of foreign requests
        rows = draw(st.integers(1, 20))
        made.append(RowSlice(index, f"r{index}", at, 0, rows, rows))
        at += rows
    return made


@given(pieces(), st.integers(1, 16))
def test_blocks_hold_each_row_once_in_order(slices: list[RowSlice], block_rows: int) -> None:
    blocks = pack_blocks(slices, block_rows)
    rows = [(run.piece, run.first + k) for runs in blocks for run in runs for k in range(run.rows)]
    assert rows == [(i, piece.first + k) for i, piece in enumerate(slices) for k in range(piece.stop - piece.start)]
    for runs in blocks:
        assert [place for run in runs for place in range(run.at, run.at + run.rows)] == list(
            range(sum(run.rows for run in runs))
        )
    assert all(sum(run.rows for run in runs) == block_rows for runs in blocks[:-1])


@given(pieces(), st.integers(1, 16))
def test_moves_put_the_same_rows_in_the_same_places(slices: list[RowSlice], block_rows: int) -> None:
    for runs in pack_blocks(slices, block_rows):
        moves = coalesce(runs)
        assert [(m.first + k, m.at + k) for m in moves for k in range(m.rows)] == [
            (r.first + k, r.at + k) for r in runs for k in range(r.rows)
        ]
        assert all(a.first + a.rows != b.first for a, b in itertools.pairwise(moves))


@given(st.integers(1, 1 << 34), st.integers(1, 1 << 20))
def test_ring_shape_keeps_to_its_size_where_it_can(ring_bytes: int, row_bytes: int) -> None:
    slots, rows = ring_shape(ring_bytes, row_bytes)
    assert slots >= 4
    assert rows >= 1
    assert rows == 1 or rows * row_bytes <= MAX_BLOCK_BYTES
    if ring_bytes >= 4 * row_bytes:
        assert slots * rows * row_bytes <= ring_bytes


def test_a_backend_reads_views_and_fills_the_block() -> None:
    ring = HostRing(1, (4, 2, 3), torch.float32, pinned=False)
    slot = ring.take(timeout_s=0)
    assert slot is not None
    packed = torch.arange(60.0).view(10, 6)
    first, second = packed.split(3, dim=-1)
    runs = pack_blocks([RowSlice(0, "a", 2, 0, 2, 2), RowSlice(1, "b", 7, 0, 2, 2)], 4)[0]
    arrived = HostBackend().copy(slot, coalesce(runs), [first, second], timeout_s=0)
    assert arrived is not None
    arrived()
    assert torch.equal(slot.rows, torch.stack([first, second], dim=1)[[2, 3, 7, 8]])
    assert bytes(slot.view(1, 2)) == slot.rows[1:3].numpy().tobytes()


def test_a_shared_slot_is_free_after_its_last_user_and_wakes_who_waits() -> None:
    ring = HostRing(1, (2, 1, 1), torch.float32, pinned=False)
    slot = ring.take(timeout_s=0)
    assert slot is not None
    slot.retain()
    slot.release()
    assert ring.take(timeout_s=0.01) is None
    timer = threading.Timer(0.05, slot.release)
    timer.start()
    assert ring.take(timeout_s=10) is slot
    assert ring.waits == 2
    timer.join()
