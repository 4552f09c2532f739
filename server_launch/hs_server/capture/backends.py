"""Moving a block of rows from the model's tensors into a ring slot.

The forward pass reuses its buffers: outputs of a replayed graph are static, and MoE layers write in place. So a
backend reads its sources before it returns to the scheduler or, on a GPU, in order on the stream that produced them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from hs_server.capture.blocks import Move
from hs_server.capture.gather import gather
from hs_server.capture.ring import HostRing, RingSlot
from hs_server.capture.staging import CudaLink, StagedBackend

__all__ = ["CopyBackend", "HostBackend", "backend_for"]


class CopyBackend(Protocol):
    """Copies blocks. `waits` and `waited_s` count how often and how long `copy` had to wait for room."""

    @property
    def waits(self) -> int:
        """Number of waits."""
        ...

    @property
    def waited_s(self) -> float:
        """Their sum."""
        ...

    def copy(
        self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor], *, timeout_s: float
    ) -> Callable[[], None] | None:
        """Start filling `slot`.

        Args:
            slot: the ring slot.
            moves: which batch rows go where; the first goes to row 0 and there are no holes.
            sources: the k+1 slot tensors [T, H]; they may be overwritten as soon as the model runs again.
            timeout_s: how long to wait for room on the way.

        Returns:
            A function that waits, in any thread, until the slot is filled, and raises RuntimeError when the device
            failed; None when there was no room in time.
        """
        ...


class HostBackend:
    """Sources in host memory: copied before the call returns."""

    waits = 0
    waited_s = 0.0

    def copy(
        self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor], *, timeout_s: float
    ) -> Callable[[], None] | None:
        """See `CopyBackend.copy`."""
        del timeout_s
        gather(slot.rows, moves, sources)
        return _nothing


def _nothing() -> None:
    return None


def backend_for(ring: HostRing, device: torch.device, *, staging_bytes: int) -> CopyBackend:
    """The backend for states on `device`; `staging_bytes` of device memory are taken on a GPU.

    Raises:
        RuntimeError: the device has no room for the staging buffers.
        ValueError: there is no backend for the device.
    """
    if device.type == "cpu":
        return HostBackend()
    if device.type == "cuda":
        return StagedBackend(CudaLink(device), ring, staging_bytes=staging_bytes)
    raise ValueError(f"no copy path from device {device}")
