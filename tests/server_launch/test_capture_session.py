"""The capture of one process, with batches and states made by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from captures import Capture, H, rid, template
from hs_formats.tiling import Writers
from hs_server.capture.session import split_slots


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Callable[..., Capture]]:
    made: list[Capture] = []

    def make(**options: Any) -> Capture:
        made.append(Capture(tmp_path, **options))
        return made[-1]

    yield make
    for item in made:
        item.writer.close()
        item.ring.close()


def batch(*requests: tuple[str, int, int, list[int]]) -> Any:
    """Requests as (rid, prefix, extend, prompt ids)."""
    return SimpleNamespace(
        reqs=[
            SimpleNamespace(rid=name, origin_input_ids=ids, to_finish=None, finished_reason=None)
            for name, _, _, ids in requests
        ],
        prefix_lens=[prefix for _, prefix, _, _ in requests],
        extend_lens=[extend for _, _, extend, _ in requests],
    )


def states(rows: int, *, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, list[torch.Tensor]]:
    values = torch.randn(3, rows, H).to(dtype)
    return values[2], [values[0], values[1]]


@pytest.mark.parametrize("packed", [False, True])
def test_rows_land_in_the_parts_of_their_requests(capture: Callable[..., Capture], packed: bool) -> None:
    it = capture()
    last, aux = states(12)
    it.session.plan(batch((rid(0), 4, 3, list(range(7))), ("other", 0, 2, [1, 2]), (rid(1), 0, 5, [9] * 5)))
    it.session.observe(last, torch.cat(aux, dim=-1) if packed else aux)
    expected = torch.stack([*aux, last], dim=1).clone()
    it.session.finish()
    last.zero_()  # the next replay overwrites the model's buffers
    assert not it.session.armed
    parts = it.parts()
    assert set(parts) == {
        f"{rid(0)}.t0000004-0000007of0000007.r00.pt",
        f"{rid(1)}.t0000000-0000005of0000005.r00.pt",
    }
    first, second = parts[min(parts)], parts[max(parts)]
    assert torch.equal(first["hidden_states"], expected[0:3])
    assert first["input_ids"].tolist() == [4, 5, 6]
    assert torch.equal(second["hidden_states"], expected[5:10])
    assert not it.failures()
    # Only the rows themselves are saved, not the batch they were cut from.
    assert all(path.stat().st_size < 3 * 5 * H * 2 + 4096 for path in it.folder.glob("*.pt"))


def test_foreign_batches_do_not_arm(capture: Callable[..., Capture]) -> None:
    it = capture()
    it.session.plan(batch(("HEALTH_CHECK_1", 0, 1, [0])))
    assert not it.session.armed


@pytest.mark.parametrize(
    ("hand_over", "reason"),
    [
        (lambda session, last, aux: None, "did not run"),
        (lambda session, last, aux: session.observe(last, None), "no auxiliary"),
        (lambda session, last, aux: session.observe(last, aux[:1]), "1 auxiliary states, not 2"),
        (lambda session, last, aux: session.observe(last[:3], [a[:3] for a in aux]), "3 rows, the batch needs 5"),
        (lambda session, last, aux: session.observe(last.float(), [a.float() for a in aux]), "float32"),
        (lambda session, last, aux: session.observe(last, [a[:, :4] for a in aux]), "for hidden size 8"),
        (lambda session, last, aux: session.observe(last, object()), "not captured"),
    ],
)
def test_missing_or_odd_states_fail_the_requests_by_name_and_raise_nothing(
    capture: Callable[..., Capture], hand_over: Callable[..., None], reason: str
) -> None:
    it = capture()
    last, aux = states(5)
    it.session.plan(batch((rid(0), 0, 2, [1, 2]), (rid(1), 0, 3, [1, 2, 3])))
    hand_over(it.session, last, aux)
    it.session.finish()
    assert it.parts() == {}
    failures = it.failures()
    assert set(failures) == {rid(0), rid(1)}
    assert all(reason in text for text in failures.values()), failures


def test_nothing_more_of_a_failed_request_is_written(capture: Callable[..., Capture]) -> None:
    it = capture()
    it.failed.add(rid(0), "lost its first chunk")
    last, aux = states(4)
    it.session.plan(batch((rid(0), 4, 2, list(range(6))), (rid(1), 0, 2, [5, 6])))
    it.session.observe(last, aux)
    it.session.finish()
    assert set(it.parts()) == {f"{rid(1)}.t0000000-0000002of0000002.r00.pt"}
    assert it.failures() == {rid(0): "lost its first chunk"}


def test_a_failing_forward_pass_is_recorded(capture: Callable[..., Capture]) -> None:
    it = capture()
    it.session.plan(batch((rid(3), 0, 2, [1, 2])))
    it.session.abandon(RuntimeError("out of memory"))
    assert "out of memory" in it.failures()[rid(3)]
    assert not it.session.armed


def test_a_full_ring_fails_the_requests_without_room_and_serving_goes_on(
    capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hs_server.capture.copy_path.RING_WAIT_S", 0.05)
    unblock = threading.Event()
    it = capture(slots=2, block_rows=2)
    monkeypatch.setattr("hs_server.capture.writer.write_part", lambda folder, job: int(unblock.wait(10)))
    last, aux = states(8)
    # Rows 0-1 fill one slot, rows 2-3 the other, and the second request still lacks a row.
    it.session.plan(batch((rid(0), 0, 2, [1, 2]), (rid(1), 0, 3, [1, 2, 3]), (rid(2), 0, 2, [1, 2])))
    it.session.observe(last, aux)
    it.session.finish()
    assert it.host_ring.waits == 1  # one wait a forward pass, not one a request
    unblock.set()
    failures = it.failures()
    assert set(failures) == {rid(1), rid(2)}
    assert all("no room in the ring" in reason for reason in failures.values())
    it.writer.close()
    assert all(it.host_ring.take(timeout_s=0) is not None for _ in range(2))  # nothing leaked


def test_a_failing_copy_is_recorded_with_its_reason(
    capture: Callable[..., Capture], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = capture()

    def broken(*args: object, **options: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("hs_server.capture.backends.HostBackend.copy", broken)
    last, aux = states(2)
    it.session.plan(batch((rid(0), 0, 2, [1, 2])))
    it.session.observe(last, aux)
    it.session.finish()
    assert "illegal memory access" in it.failures()[rid(0)]
    assert all(it.host_ring.take(timeout_s=0) is not None for _ in range(it.slots))


@pytest.mark.parametrize(("writers", "rank", "want"), [("first", 1, 0), ("spread", 1, 2), ("all", 1, 3)])
def test_ranks_write_their_share(capture: Callable[..., Capture], writers: Writers, rank: int, want: int) -> None:
    it = capture(
        meta=template(
            writers=writers, tp_rank=rank, attn_tp_rank=rank, tp_size=2, attn_tp_size=2, expected_ranks=[0, 1]
        )
    )
    last, aux = states(3)
    it.session.plan(batch((rid(0), 0, 3, [1, 2, 3])))
    it.session.observe(last, aux)
    if it.session.armed:
        it.session.finish()
    parts = it.parts()
    assert sum(len(part["input_ids"]) for part in parts.values()) == want
    assert all(name.endswith(".r01.pt") for name in parts)


def test_split_slots_keeps_ascending_order() -> None:
    last, aux = states(2)
    listed = split_slots(last, aux, boundaries=2, hidden_size=H)
    packed = split_slots(last, torch.cat(aux, dim=-1), boundaries=2, hidden_size=H)
    assert all(torch.equal(a, b) for a, b in zip(listed, packed, strict=True))
