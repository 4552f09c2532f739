"""Collecting the rows of a block from the k+1 slot tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hs_server.capture.blocks import Move

__all__ = ["gather"]


def gather(target: torch.Tensor, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> None:
    """Fill rows of `target` [block_rows, k+1, H] from `sources`, k+1 tensors [T, H] on the same device.

    One kernel a move serves all slots and has vectorised loads and stores, unlike a strided copy for each slot.

    Raises:
        ValueError: the sources do not fit the target or have fewer rows than the moves need.
    """
    stop = max(move.first + move.rows for move in moves)
    if len(sources) != target.shape[1] or any(
        source.shape[1] != target.shape[2] or source.shape[0] < stop for source in sources
    ):
        # torch.cat would put its result elsewhere than in `target`.
        shapes = [list(source.shape) for source in sources]
        raise ValueError(f"sources {shapes} do not give {stop} rows of {list(target.shape[1:])}")
    flat = target.view(target.shape[0], -1)
    for move in moves:
        rows = flat[move.at : move.at + move.rows]
        torch.cat([source[move.first : move.first + move.rows] for source in sources], dim=1, out=rows)
