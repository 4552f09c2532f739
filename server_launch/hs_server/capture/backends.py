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
    for move in moves:
        rows = target[move.at : move.at + move.rows]
        for index, source in enumerate(sources):
            rows[:, index].copy_(source[move.first : move.first + move.rows])


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
    """Sources on a GPU: gathered on the forward stream into one of two staging buffers, sent on by a side stream.

    Nothing here waits on the host. The forward stream waits, on the device, only for the transfer of the block before
    the last one, which is over long before unless the copies outrun PCIe.

    Args:
        ring: its slots get one event each.
        device: where the model's states are.

    Raises:
        torch.cuda.OutOfMemoryError: no room for the staging buffers.
    """

    def __init__(self, ring: HostRing, device: torch.device) -> None:
        shape = ring.slots[0].rows.shape
        dtype = ring.slots[0].rows.dtype
        with torch.cuda.device(device):
            self._side = torch.cuda.Stream(device=device)
            self._stages = [
                _Stage(torch.empty(shape, dtype=dtype, device=device), torch.cuda.Event(), torch.cuda.Event())
                for _ in range(2)
            ]
            # blocking: a writer thread that waits must sleep, not spin on a core that the scheduler needs.
            self._arrived = [torch.cuda.Event(blocking=True) for _ in ring.slots]
        self._turn = 0

    def copy(self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor]) -> Callable[[], None]:
        """See `CopyBackend.copy`."""
        stage = self._stages[self._turn]
        self._turn = 1 - self._turn
        forward = torch.cuda.current_stream(stage.rows.device)
        forward.wait_event(stage.drained)
        _gather(stage.rows, moves, sources)
        stage.filled.record(forward)
        self._side.wait_event(stage.filled)
        rows = moves[-1].at + moves[-1].rows
        arrived = self._arrived[slot.index]
        with torch.cuda.stream(self._side):
            slot.rows[:rows].copy_(stage.rows[:rows], non_blocking=True)
            stage.drained.record(self._side)
            arrived.record(self._side)
        wait: Callable[[], None] = arrived.synchronize
        return wait


def backend_for(ring: HostRing, device: torch.device) -> CopyBackend:
    """The backend for states on `device`.

    Raises:
        ValueError: there is none.
    """
    if device.type == "cpu":
        return HostBackend()
    if device.type == "cuda":
        return CudaBackend(ring, device)
    raise ValueError(f"no copy path from device {device}")
