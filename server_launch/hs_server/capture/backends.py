"""Moving a block of rows from the model's tensors into a ring slot, on the CPU and on CUDA.

The forward pass reuses its buffers: outputs of a replayed graph are static, and MoE layers write in place. So a backend
reads its sources before it returns to the scheduler or, on CUDA, in order on the stream that produced them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from hs_server.capture.blocks import Move
from hs_server.capture.ring import HostRing, RingSlot

__all__ = ["CopyBackend", "CudaBackend", "HostBackend", "backend_for"]


_PIECE_BYTES = 4 << 20
"""Transferred in one command: 75 µs at PCIe 5 speed."""


class CopyBackend(Protocol):
    """Copies blocks."""

    def copy(self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Start filling `slot` and return a function that waits, in any thread, until it is filled.

        Args:
            slot: the ring slot.
            moves: which batch rows go where.
            sources: the k+1 slot tensors [T, H]; they may be overwritten as soon as the model runs again.
        """
        ...


def _gather(target: torch.Tensor, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> None:
    flat = target.view(target.shape[0], -1)
    for move in moves:
        rows = flat[move.at : move.at + move.rows]
        # One kernel for all slots, with vectorised loads and stores, unlike a strided copy for each of them.
        torch.cat([source[move.first : move.first + move.rows] for source in sources], dim=1, out=rows)


class HostBackend:
    """Sources in host memory: copied before the call returns."""

    def copy(self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> Callable[[], None]:
        """See `CopyBackend.copy`."""
        _gather(slot.rows, moves, sources)
        return _nothing


def _nothing() -> None:
    return None


@dataclass(slots=True)
class _Stage:
    """A staging buffer in device memory. `drained` is recorded when its last block has left for the host."""

    rows: torch.Tensor
    filled: torch.cuda.Event
    drained: torch.cuda.Event


class CudaBackend:
    """Sources on a GPU: gathered on the forward stream into staging buffers used in turn, sent on by a side stream.

    Nothing here waits on the host. The forward stream waits, on the device, only when all staging buffers are still on
    their way: with room for the rows of a whole batch it does not, since the transfer of one batch is over long before
    the next one is computed. With two buffers a batch of four blocks stalls for two transfers (1.3 % of the prefill
    throughput of an 8B model on an H200).

    Args:
        ring: its slots get one event each.
        device: where the model's states are.
        staging_bytes: device memory to take; at least two buffers of a ring slot's size.

    Raises:
        torch.cuda.OutOfMemoryError: no room for the staging buffers.
    """

    def __init__(self, ring: HostRing, device: torch.device, *, staging_bytes: int) -> None:
        shape = ring.slots[0].rows.shape
        dtype = ring.slots[0].rows.dtype
        with torch.cuda.device(device):
            self._side = torch.cuda.Stream(device=device)
            self._stages = [
                _Stage(torch.empty(shape, dtype=dtype, device=device), torch.cuda.Event(), torch.cuda.Event())
                for _ in range(max(2, staging_bytes // ring.slot_bytes))
            ]
            # blocking: a writer thread that waits must sleep, not spin on a core that the scheduler needs.
            self._arrived = [torch.cuda.Event(blocking=True) for _ in ring.slots]
        self._turn = 0
        self._piece_rows = max(1, _PIECE_BYTES * ring.block_rows // ring.slot_bytes)

    def copy(self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> Callable[[], None]:
        """See `CopyBackend.copy`."""
        stage = self._stages[self._turn]
        self._turn = (self._turn + 1) % len(self._stages)
        forward = torch.cuda.current_stream(stage.rows.device)
        forward.wait_event(stage.drained)
        _gather(stage.rows, moves, sources)
        stage.filled.record(forward)
        self._side.wait_event(stage.filled)
        rows = moves[-1].at + moves[-1].rows
        arrived = self._arrived[slot.index]
        with torch.cuda.stream(self._side):
            # In pieces: one copy engine serves all transfers to the host in order, and the server's own small ones
            # (sampled tokens, lengths) must not wait behind a whole block.
            for at in range(0, rows, self._piece_rows):
                stop = min(rows, at + self._piece_rows)
                slot.rows[at:stop].copy_(stage.rows[at:stop], non_blocking=True)
            stage.drained.record(self._side)
            arrived.record(self._side)
        wait: Callable[[], None] = arrived.synchronize
        return wait


def backend_for(ring: HostRing, device: torch.device, *, staging_bytes: int) -> CopyBackend:
    """The backend for states on `device`; see `CudaBackend` for the arguments.

    Raises:
        ValueError: there is none.
    """
    if device.type == "cpu":
        return HostBackend()
    if device.type == "cuda":
        return CudaBackend(ring, device, staging_bytes=staging_bytes)
    raise ValueError(f"no copy path from device {device}")
