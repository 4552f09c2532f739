"""The GPU copy path's logic, with a device of our own: what is copied when, what happens without room or on errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from hs_server.capture.blocks import Move
from hs_server.capture.ring import HostRing, RingSlot
from hs_server.capture.staging import StagedBackend, default_staging_bytes

SHAPE = (8, 2, 4)


class SlowLink:
    """A device whose transfers happen late: each `send` is done only when its event is waited for.

    `most_in_flight` is the largest number of transfers begun and not waited for.
    """

    def __init__(self) -> None:
        self.released = threading.Event()
        self.released.set()
        self.fail: Exception | None = None
        self.most_in_flight = 0
        self.followed: list[Any] = []
        self._pending: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def buffer(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.full(tuple(shape), float("nan"), dtype=dtype)

    def event(self) -> Any:
        return object()

    def mark(self, event: Any) -> None:
        pass

    def enter(self) -> None:
        pass

    def follow(self, event: Any) -> None:
        self.followed.append(event)
        assert self.released.wait(10)

    def send(self, target: torch.Tensor, source: torch.Tensor, event: Any) -> None:
        assert id(event) not in self._pending, "an event was used again before it was waited for"
        if self.fail is not None:
            raise self.fail
        self._pending[id(event)] = (target, source)
        self.most_in_flight = max(self.most_in_flight, len(self._pending))

    def wait(self, event: Any) -> None:
        if id(event) in self._pending:
            target, source = self._pending.pop(id(event))
            time.sleep(0.001)
            target.copy_(source)


@pytest.fixture
def ring() -> HostRing:
    return HostRing(4, SHAPE, torch.float32, pinned=False)


def take(ring: HostRing) -> RingSlot:
    slot = ring.take(timeout_s=0)
    assert slot is not None
    return slot


def sources(rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows, 4), torch.randn(rows, 4)]


def test_rows_arrive_although_the_sources_are_overwritten_at_once(
    ring: HostRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_server.capture.staging._PIECE_BYTES", 3 * 2 * 4 * 4)  # three rows
    link = SlowLink()
    backend = StagedBackend(link, ring, staging_bytes=2 * ring.slot_bytes)
    given = sources(20)
    expected = torch.stack(given, dim=1)[[3, 4, 5, 6, 12, 13, 14]].clone()
    slot = take(ring)
    arrived = backend.copy(slot, [Move(3, 4, 0), Move(12, 3, 4)], given, timeout_s=1)
    for tensor in given:
        tensor.zero_()
    assert arrived is not None
    arrived()
    assert torch.equal(slot.rows[:7], expected)
    assert link.most_in_flight == 2  # three pieces, never more than two queued


def test_stages_are_reused_and_every_block_keeps_its_own_rows(ring: HostRing) -> None:
    backend = StagedBackend(SlowLink(), ring, staging_bytes=2 * ring.slot_bytes)
    for _ in range(5):
        slots = [take(ring) for _ in range(4)]
        given = [sources(8) for _ in slots]
        expected = [torch.stack(pair, dim=1).clone() for pair in given]
        waits = [
            backend.copy(slot, [Move(0, 8, 0)], pair, timeout_s=5) for slot, pair in zip(slots, given, strict=True)
        ]
        for slot, want, arrived in zip(slots, expected, waits, strict=True):
            assert arrived is not None
            arrived()
            assert torch.equal(slot.rows, want)
            slot.release()


def test_without_a_free_stage_the_wait_is_bounded_and_counted(ring: HostRing) -> None:
    link = SlowLink()
    link.released.clear()  # the forward pass does not end
    backend = StagedBackend(link, ring, staging_bytes=2 * ring.slot_bytes)
    waits = [backend.copy(take(ring), [Move(0, 8, 0)], sources(8), timeout_s=1) for _ in range(2)]
    assert backend.copy(take(ring), [Move(0, 8, 0)], sources(8), timeout_s=0.02) is None
    assert backend.waits == 1
    assert 0.01 < backend.waited_s < 5
    link.released.set()
    for arrived in waits:
        assert arrived is not None
        arrived()
    assert backend.stages.take(timeout_s=5) is not None


def test_a_device_error_reaches_whoever_waits_and_the_sender_goes_on(ring: HostRing) -> None:
    link = SlowLink()
    backend = StagedBackend(link, ring, staging_bytes=2 * ring.slot_bytes)
    link.fail = RuntimeError("CUDA error: unspecified launch failure")
    arrived = backend.copy(take(ring), [Move(0, 8, 0)], sources(8), timeout_s=1)
    assert arrived is not None
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        arrived()
    link.fail = None
    slot, given = take(ring), sources(8)
    arrived = backend.copy(slot, [Move(0, 8, 0)], given, timeout_s=1)
    assert arrived is not None
    arrived()
    assert torch.equal(slot.rows, torch.stack(given, dim=1))


def test_a_failing_gather_gives_the_stage_back(ring: HostRing) -> None:
    backend = StagedBackend(SlowLink(), ring, staging_bytes=2 * ring.slot_bytes)
    for _ in range(3):
        with pytest.raises(ValueError, match="do not give"):
            backend.copy(take(ring), [Move(0, 8, 0)], [torch.randn(8, 4), torch.randn(8, 5)], timeout_s=0)


def test_default_staging_holds_two_batches_within_a_gibibyte() -> None:
    assert default_staging_bytes(chunk_tokens=8192, row_bytes=4 * 4096 * 2) == 2 * 8192 * 4 * 4096 * 2
    assert default_staging_bytes(chunk_tokens=16384, row_bytes=4 * 7168 * 2) == 1 << 30
    assert default_staging_bytes(chunk_tokens=0, row_bytes=100) == 1 << 30
