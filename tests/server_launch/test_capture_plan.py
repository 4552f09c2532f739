"""Row slicing: every row of ours goes to its request and its token, whatever the batch looks like."""

from __future__ import annotations

from hypothesis import given, strategies as st

from hs_formats.tiling import WRITERS, Writers, cover
from hs_server.capture.plan import BatchRow, RowSlice, plan_batch, share_of_rank

OURS = "hs-0123abcd-00000007-00"


def rid(row: int) -> str:
    return f"hs-0123abcd-{row:08d}-00"


@st.composite
def chunked_requests(draw: st.DrawFn) -> tuple[list[int], list[list[tuple[int, int]]]]:
    """Prompt lengths and a schedule: per forward pass the (request, tokens) it computes, each request in order."""
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    left = list(lengths)
    passes: list[list[tuple[int, int]]] = []
    while any(left):
        budget = draw(st.integers(1, 32))
        batch: list[tuple[int, int]] = []
        for request in draw(st.permutations([i for i, rest in enumerate(left) if rest])):
            take = min(left[request], budget)
            if take:
                batch.append((request, take))
                left[request] -= take
                budget -= take
        passes.append(batch)
    return lengths, passes


@given(chunked_requests(), st.integers(0, 3))
def test_every_token_of_every_request_is_sliced_once_from_its_own_rows(
    schedule: tuple[list[int], list[list[tuple[int, int]]]], foreign: int
) -> None:
    lengths, passes = schedule
    done = [0] * len(lengths)
    seen: dict[str, list[tuple[int, int]]] = {rid(i): [] for i in range(len(lengths))}
    for batch in passes:
        rows = [BatchRow(f"HEALTH_CHECK_{i}", 0, 1, 1, ending=False) for i in range(foreign)]
        owners = [("foreign", 0)] * foreign  # what each row of the forward pass really is
        for request, take in batch:
            rows.append(BatchRow(rid(request), done[request], take, lengths[request], ending=False))
            owners += [(rid(request), done[request] + k) for k in range(take)]
            done[request] += take
        for piece in plan_batch(rows):
            count = piece.stop - piece.start
            assert owners[piece.first : piece.first + count] == [(piece.rid, piece.start + k) for k in range(count)]
            assert rows[piece.index].rid == piece.rid
            seen[piece.rid].append((piece.start, piece.stop))
    for request, n in enumerate(lengths):
        assert cover(n, seen[rid(request)]).exact


def test_foreign_ending_and_generated_rows_are_left_out() -> None:
    rows = [
        BatchRow("HEALTH_CHECK_1", 0, 1, 1, ending=False),
        BatchRow("../../etc/passwd", 0, 2, 2, ending=False),
        BatchRow(rid(1), 0, 1, 1, ending=True),  # refused: its dummy token must not become a record
        BatchRow(rid(2), 8, 4, 10, ending=False),  # prefilled again after a retraction, with two output tokens
        BatchRow(rid(3), 10, 2, 10, ending=False),  # output tokens only
        BatchRow(rid(4), 0, 3, 3, ending=False),
    ]
    assert plan_batch(rows) == [
        RowSlice(3, rid(2), 4, 8, 10, 10),
        RowSlice(5, rid(4), 10, 0, 3, 3),
    ]


@given(st.integers(1, 50), st.integers(0, 50), st.integers(1, 9), st.sampled_from(WRITERS))
def test_shares_of_all_ranks_tile_what_the_writers_mode_promises(
    rows: int, start: int, size: int, writers: Writers
) -> None:
    piece = RowSlice(0, OURS, 5, start, start + rows, start + rows)
    shares = [share_of_rank(piece, rank=rank, size=size, writers=writers) for rank in range(size)]
    ranges = [(share.start - start, share.stop - start) for share in shares if share is not None]
    assert all(share.first - 5 == share.start - start for share in shares if share is not None)
    if writers == "all":
        assert ranges == [(0, rows)] * size
    else:
        assert cover(rows, ranges).exact
    if writers == "first":
        assert shares[1:] == [None] * (size - 1)
