"""Which rows of a prefill batch belong to which of our requests. Pure logic.

SGLang's extend batch holds the tokens of its requests one after the other: request j owns rows
[sum(extend[:j]), + extend[j]) and they are its tokens prefix[j] ... (``ScheduleBatch.prepare_for_extend``). Rows after
the last request are padding of graphs or of DP attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hs_formats.names import MAX_TOKENS, Rid, canary_of_every_rank
from hs_formats.tiling import Writers

__all__ = ["BatchRow", "RowSlice", "plan_batch", "share_of_rank", "writers_of"]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One request of a batch, as the scheduler describes it.

    `prompt_tokens` is the length of the whole prompt, `ending` says that the request is already aborted or refused.
    """

    rid: str
    prefix: int
    extend: int
    prompt_tokens: int
    ending: bool


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Batch rows [first, first + stop - start) are tokens [start, stop) of n of the batch's request number `index`."""

    index: int
    rid: str
    first: int
    start: int
    stop: int
    n: int


def plan_batch(rows: Iterable[BatchRow]) -> list[RowSlice]:
    """The slices of our requests. Foreign requests, ending ones and rows beyond the prompt are left out.

    A request that the scheduler rejects still runs a prefill of one dummy token under its rid
    (``Req.set_finish_with_abort``); a retracted one is prefilled again with its output. Neither may become a record.
    """
    slices: list[RowSlice] = []
    first = 0
    for index, row in enumerate(rows):
        stop = min(row.prefix + row.extend, row.prompt_tokens)
        if not row.ending and row.prefix < stop and row.prompt_tokens <= MAX_TOKENS and Rid.matches(row.rid):
            slices.append(RowSlice(index, row.rid, first, row.prefix, stop, row.prompt_tokens))
        first += row.extend
    return slices


def share_of_rank(piece: RowSlice, *, rank: int, size: int, writers: Writers) -> RowSlice | None:
    """The part of a slice that TP rank `rank` of `size` writes, or None.

    `first`: rank 0 everything; `all`: everybody everything; `spread`: contiguous shares, equal up to one row.
    """
    if writers == "all" or size == 1:
        return piece
    if writers == "first":
        return piece if rank == 0 else None
    rows = piece.stop - piece.start
    low, high = rows * rank // size, rows * (rank + 1) // size
    if low == high:
        return None
    return RowSlice(piece.index, piece.rid, piece.first + low, piece.start + low, piece.start + high, piece.n)


def writers_of(rid: str, configured: Writers) -> Writers:
    """Which ranks write the rows of `rid`: as `configured`, but all of them for the canary that compares ranks."""
    return "all" if canary_of_every_rank(rid) else configured
