"""The ring: host memory of fixed size between the forward pass and the files, allocated once.

It is a set of equal slots, each holding one block of rows [block_rows, k+1, H]. A slot is shared by the parts whose
rows it holds and is free again when the last of them is written, in whatever order that happens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from hs_server.capture.pool import Pool

__all__ = ["HostRing", "RingSlot"]


class RingSlot:
    """One slot of the ring, counted by its users."""

    def __init__(self, index: int, rows: torch.Tensor, give_back: Callable[[RingSlot], None]) -> None:
        self.index = index
        self.rows = rows
        """Host tensor [block_rows, k+1, H]."""
        self._give_back = give_back
        self._users = 0
        self._lock = threading.Lock()

    def retain(self) -> None:
        """One user more."""
        with self._lock:
            self._users += 1

    def release(self) -> None:
        """One user less; the last one frees the slot."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._give_back(self)

    def view(self, at: int, rows: int) -> memoryview:
        """Bytes of block rows [at, at + rows)."""
        flat = self.rows[at : at + rows].view(-1).view(torch.uint8)
        data: memoryview = flat.numpy().data
        return data


class HostRing:
    """All slots.

    Args:
        slots: how many.
        shape: of one slot, (block_rows, k+1, H).
        dtype: of the states.
        pinned: page-locked memory, for asynchronous copies from a GPU.

    Raises:
        RuntimeError: the memory cannot be had.
    """

    def __init__(self, slots: int, shape: tuple[int, int, int], dtype: torch.dtype, *, pinned: bool) -> None:
        # The device is named because source mode gets here while the model is built, with the GPU as default device.
        memory = torch.empty((slots, *shape), dtype=dtype, device="cpu", pin_memory=pinned)
        self.slots = [RingSlot(index, memory[index], self._put_back) for index in range(slots)]
        self.bytes = int(memory.numel() * memory.element_size())
        self._pool = Pool(self.slots)

    @property
    def slot_bytes(self) -> int:
        """Size of one slot."""
        return self.bytes // len(self.slots)

    @property
    def block_rows(self) -> int:
        """Rows that fit one slot."""
        return int(self.slots[0].rows.shape[0])

    @property
    def waits(self) -> int:
        """How often `take` had to wait."""
        return self._pool.waits

    @property
    def waited_s(self) -> float:
        """How long it did."""
        return self._pool.waited_s

    def take(self, *, timeout_s: float) -> RingSlot | None:
        """A free slot with the caller as its one user; None when none became free within `timeout_s`."""
        slot = self._pool.take(timeout_s=timeout_s)
        if slot is not None:
            slot.retain()
        return slot

    def _put_back(self, slot: RingSlot) -> None:
        self._pool.give_back(slot)
