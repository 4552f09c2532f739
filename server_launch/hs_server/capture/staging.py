"""The copy path on a GPU: gather into staging buffers on the forward stream, send them on from a thread in pieces.

One copy engine serves all transfers to the host. Once a transfer is queued there, everything behind it waits, and the
server's own transfers, a few sampled tokens each, are on its critical path: queueing the blocks of an 8,192-token batch
at once costs 1.5 % of the prefill throughput of an 8B model on an H200, although the copies themselves cost nothing
measurable. So a sender thread keeps two small pieces in flight at most, and whatever the server wants to copy waits for
one of them only.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from hs_server.capture.blocks import Move
from hs_server.capture.gather import gather
from hs_server.capture.pool import Pool
from hs_server.capture.ring import HostRing, RingSlot

__all__ = ["CudaLink", "Link", "StagedBackend", "default_staging_bytes"]

logger = logging.getLogger(__name__)

_PIECE_BYTES = 4 << 20
"""Transferred in one command: 75 µs at the speed of PCIe 5."""

_PIECES_IN_FLIGHT = 2

_MAX_DEFAULT_STAGING_BYTES = 1 << 30


def default_staging_bytes(*, chunk_tokens: int, row_bytes: int) -> int:
    """Room for the rows of two prefill batches, 1 GiB at most.

    While one batch is computed the rows of the one before it leave, and the scheduler may run one batch ahead.
    """
    if chunk_tokens <= 0:
        return _MAX_DEFAULT_STAGING_BYTES
    return min(_MAX_DEFAULT_STAGING_BYTES, 2 * chunk_tokens * row_bytes)


class Link(Protocol):
    """What the backend needs of a device; `Any` stands for its events."""

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Device memory."""
        ...

    def event(self) -> Any:
        """A new event."""
        ...

    def mark(self, event: Any) -> None:
        """Record `event` on the stream of the forward pass. Called by the scheduler thread."""
        ...

    def enter(self) -> None:
        """Called once by the sender thread, before anything else."""
        ...

    def follow(self, event: Any) -> None:
        """Let the side stream wait for `event`."""
        ...

    def send(self, target: torch.Tensor, source: torch.Tensor, event: Any) -> None:
        """Copy to the host on the side stream and record `event` behind it."""
        ...

    def wait(self, event: Any) -> None:
        """Sleep until `event` has happened.

        Raises:
            RuntimeError: the device failed.
        """
        ...


class CudaLink:
    """See `Link`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device=device)

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """See `Link.buffer`."""
        return torch.empty(tuple(shape), dtype=dtype, device=self._device)

    def event(self) -> torch.cuda.Event:
        """See `Link.event`. Blocking: a thread that waits must not spin on a core that the server needs."""
        return torch.cuda.Event(blocking=True)

    def mark(self, event: torch.cuda.Event) -> None:
        """See `Link.mark`."""
        event.record(torch.cuda.current_stream(self._device))

    def enter(self) -> None:
        """See `Link.enter`."""
        torch.cuda.set_device(self._device)

    def follow(self, event: torch.cuda.Event) -> None:
        """See `Link.follow`."""
        self._side.wait_event(event)

    def send(self, target: torch.Tensor, source: torch.Tensor, event: torch.cuda.Event) -> None:
        """See `Link.send`."""
        with torch.cuda.stream(self._side):
            target.copy_(source, non_blocking=True)
            event.record(self._side)

    def wait(self, event: torch.cuda.Event) -> None:
        """See `Link.wait`."""
        event.synchronize()


@dataclass(slots=True)
class _Stage:
    """A staging buffer; `filled` happens when its rows have been gathered."""

    rows: torch.Tensor
    filled: Any


@dataclass(slots=True)
class _Transfer:
    """A block on its way to `slot`; over when `over` is set, failed when `error` is too."""

    stage: _Stage
    slot: RingSlot
    rows: int
    over: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def wait(self) -> None:
        self.over.wait()
        if self.error is not None:
            raise RuntimeError(f"the transfer from the device failed: {self.error}") from self.error


class StagedBackend:
    """Sources on a device. Neither stream nor thread of the forward pass waits for a transfer while a stage is free.

    Args:
        link: the device.
        ring: where blocks go.
        staging_bytes: device memory to take; at least two buffers of a ring slot's size.

    Raises:
        torch.cuda.OutOfMemoryError: no room for the staging buffers.
    """

    def __init__(self, link: Link, ring: HostRing, *, staging_bytes: int) -> None:
        self._link = link
        shape, dtype = ring.slots[0].rows.shape, ring.slots[0].rows.dtype
        count = max(2, staging_bytes // ring.slot_bytes)
        self.stages = Pool(_Stage(link.buffer(shape, dtype), link.event()) for _ in range(count))
        self._piece_rows = max(1, _PIECE_BYTES * ring.block_rows // ring.slot_bytes)
        self._transfers: queue.SimpleQueue[_Transfer] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="hs-sender", daemon=True).start()

    @property
    def waits(self) -> int:
        """How often the scheduler had to wait for a staging buffer."""
        return self.stages.waits

    @property
    def waited_s(self) -> float:
        """How long it did."""
        return self.stages.waited_s

    def copy(
        self, slot: RingSlot, moves: Sequence[Move], sources: Sequence[torch.Tensor], *, timeout_s: float
    ) -> Callable[[], None] | None:
        """See `CopyBackend.copy`."""
        stage = self.stages.take(timeout_s=timeout_s)
        if stage is None:
            return None
        try:
            gather(stage.rows, moves, sources)
            self._link.mark(stage.filled)
        except BaseException:
            self.stages.give_back(stage)
            raise
        transfer = _Transfer(stage, slot, moves[-1].at + moves[-1].rows)
        self._transfers.put(transfer)
        return transfer.wait

    def _work(self) -> None:
        self._link.enter()
        events = [self._link.event() for _ in range(_PIECES_IN_FLIGHT)]
        while True:
            transfer = self._transfers.get()
            try:
                self._send(transfer, events)
            except Exception as error:
                logger.exception("hs-extract: a transfer from the device failed")
                transfer.error = error
            finally:
                self.stages.give_back(transfer.stage)
                transfer.over.set()

    def _send(self, transfer: _Transfer, events: Sequence[Any]) -> None:
        self._link.follow(transfer.stage.filled)
        starts = range(0, transfer.rows, self._piece_rows)
        for number, start in enumerate(starts):
            event = events[number % len(events)]
            if number >= len(events):
                self._link.wait(event)
            stop = min(transfer.rows, start + self._piece_rows)
            self._link.send(transfer.slot.rows[start:stop], transfer.stage.rows[start:stop], event)
        for event in events[: len(starts)]:
            self._link.wait(event)
