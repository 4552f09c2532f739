"""From the model's tensors to the writer threads: blocks, ring slots, and what happens when the ring is full."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hs_formats.part import PartMeta
from hs_server.capture.backends import CopyBackend
from hs_server.capture.blocks import coalesce, pack_blocks
from hs_server.capture.plan import RowSlice
from hs_server.capture.ring import HostRing
from hs_server.capture.writer import Chunk, FailedRids, PartJob, PartWriter

__all__ = ["MAX_BLOCK_BYTES", "RING_WAIT_S", "CopyPath", "Piece", "ring_shape"]

RING_WAIT_S = 2.0
"""How long one forward pass may make the scheduler wait for room in the ring before its requests are given up."""

MAX_BLOCK_BYTES = 32 << 20
"""Largest ring slot and staging buffer; large enough that a transfer runs at PCIe speed."""

_MIN_SLOTS = 4


def ring_shape(ring_bytes: int, row_bytes: int) -> tuple[int, int]:
    """(slots, rows in a slot) for a ring of at most `ring_bytes`; at least four slots, at least one row each."""
    block_rows = max(1, min(MAX_BLOCK_BYTES, ring_bytes // _MIN_SLOTS) // row_bytes)
    return max(_MIN_SLOTS, ring_bytes // (block_rows * row_bytes)), block_rows


@dataclass(frozen=True, slots=True)
class Piece:
    """A slice of the batch, the meta of the part it becomes, and its token ids (int64, little-endian)."""

    rows: RowSlice
    meta: PartMeta
    input_ids: bytes


class CopyPath:
    """Copies the planned rows of a forward pass and queues their parts for writing. For the scheduler thread only."""

    def __init__(self, ring: HostRing, backend: CopyBackend, writer: PartWriter, failed: FailedRids) -> None:
        self.ring = ring
        self._backend = backend
        self._writer = writer
        self._failed = failed

    @property
    def waits(self) -> int:
        """How often the scheduler had to wait for room, in the ring or in the staging buffers."""
        return self.ring.waits + self._backend.waits

    @property
    def waited_s(self) -> float:
        """How long it did."""
        return self.ring.waited_s + self._backend.waited_s

    def submit(self, pieces: Sequence[Piece], sources: Sequence[torch.Tensor]) -> None:
        """Start the copies of all `pieces` and queue those that found room.

        Args:
            pieces: what to copy.
            sources: k+1 tensors [T, H] in slot order; they may be views and on any device the backend serves.
        """
        chunks: list[list[Chunk]] = [[] for _ in pieces]
        unfinished = 0  # the first piece that still lacks rows
        reason = f"no room in the ring of {self.ring.bytes} bytes for {RING_WAIT_S} s"
        ends_at = time.monotonic() + RING_WAIT_S
        try:
            for runs in pack_blocks([piece.rows for piece in pieces], self.ring.block_rows):
                slot = self.ring.take(timeout_s=max(0.0, ends_at - time.monotonic()))
                if slot is None:
                    break
                try:
                    left_s = max(0.0, ends_at - time.monotonic())
                    arrived = self._backend.copy(slot, coalesce(runs), sources, timeout_s=left_s)
                    if arrived is None:
                        reason = f"no room in the staging buffers for {RING_WAIT_S} s"
                        break
                    for run in runs:
                        slot.retain()
                        chunks[run.piece].append(Chunk(slot, run.at, run.rows, arrived))
                finally:
                    slot.release()
                while unfinished < len(pieces) and _rows(chunks[unfinished]) == _wanted(pieces[unfinished]):
                    piece = pieces[unfinished]
                    self._writer.submit(PartJob(piece.meta, piece.input_ids, tuple(chunks[unfinished])))
                    unfinished += 1
        except Exception as error:
            reason = f"copy failed: {error}"
            raise
        finally:
            for piece, left in zip(pieces[unfinished:], chunks[unfinished:], strict=True):
                self._failed.add(piece.meta.rid, reason)
                for chunk in left:
                    with contextlib.suppress(RuntimeError):
                        chunk.arrived()  # the slot must not be reused under a copy that is still on its way
                    chunk.slot.release()


def _rows(chunks: Sequence[Chunk]) -> int:
    return sum(chunk.rows for chunk in chunks)


def _wanted(piece: Piece) -> int:
    return piece.rows.stop - piece.rows.start
