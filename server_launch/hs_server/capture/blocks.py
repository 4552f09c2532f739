"""How the rows of a batch are packed into fixed-size blocks on their way to the host. Pure logic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hs_server.capture.plan import RowSlice

__all__ = ["Move", "Run", "coalesce", "pack_blocks"]


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one slice inside one block: `rows` rows from batch row `first` on lie at block row `at`."""

    piece: int
    first: int
    rows: int
    at: int


@dataclass(frozen=True, slots=True)
class Move:
    """One contiguous copy: batch rows [first, first + rows) to block rows [at, at + rows)."""

    first: int
    rows: int
    at: int


def pack_blocks(pieces: Sequence[RowSlice], block_rows: int) -> list[list[Run]]:
    """Blocks that hold the rows of all `pieces`, in order and without holes; a piece may span several blocks."""
    blocks: list[list[Run]] = []
    room = 0
    for index, piece in enumerate(pieces):
        first, left = piece.first, piece.stop - piece.start
        while left:
            if not room:
                blocks.append([])
                room = block_rows
            rows = min(left, room)
            blocks[-1].append(Run(index, first, rows, block_rows - room))
            first, left, room = first + rows, left - rows, room - rows
    return blocks


def coalesce(runs: Iterable[Run]) -> list[Move]:
    """The fewest copies that fill a block: neighbours in the batch are neighbours in the block, one copy for both."""
    moves: list[Move] = []
    for run in runs:
        last = moves[-1] if moves else None
        if last is not None and last.first + last.rows == run.first:
            moves[-1] = Move(last.first, last.rows + run.rows, last.at)
        else:
            moves.append(Move(run.first, run.rows, run.at))
    return moves
