from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from hs_formats import failure_ring
from hs_formats.errors import FormatError
from hs_formats.failure_ring import FAILURE_SLOTS, Failure, FailureReader, FailureRing
from small_tmpfs import fill, small_tmpfs

RID = "hs-0000abcd-{:08d}-00"


def test_each_failure_is_read_once(tmp_path: Path) -> None:
    reader = FailureReader(tmp_path / "ring")
    assert reader.poll() == []
    ring = FailureRing(tmp_path / "ring")
    assert reader.poll() == []
    ring.record(RID.format(1), "no space\n left  on device")
    ring.record(RID.format(2), "é")
    assert reader.poll() == [
        Failure(1, RID.format(1), "no space left on device"),
        Failure(2, RID.format(2), "?"),
    ]
    assert reader.poll() == []
    ring.record(RID.format(3), "")
    assert reader.poll() == [Failure(3, RID.format(3), "")]
    assert (ring.count, reader.lost) == (3, 0)
    ring.close()
    ring.close()
    (tmp_path / "ring").unlink()
    assert reader.poll() == []


@settings(deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=12))
def test_wrapping_loses_the_oldest_and_counts_them(
    tmp_path_factory: pytest.TempPathFactory, slots: int, bursts: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "wrapping"
    ring, reader = FailureRing(path, slots=slots), FailureReader(path)
    written = lost = 0
    for burst in bursts:
        for _ in range(burst):
            written += 1
            ring.record(RID.format(written), f"reason {written}")
        kept = min(burst, slots)
        lost += burst - kept
        assert [failure.rid for failure in reader.poll()] == [
            RID.format(number) for number in range(written - kept + 1, written + 1)
        ]
        assert reader.lost == lost
    ring.close()


@given(st.text(max_size=400))
def test_any_reason_can_be_read_back(tmp_path_factory: pytest.TempPathFactory, reason: str) -> None:
    path = tmp_path_factory.getbasetemp() / "reasons"
    ring = FailureRing(path, slots=2)
    ring.record(RID.format(1), reason)
    ring.close()
    (failure,) = FailureReader(path).poll()
    plain = " ".join(reason.split()).encode("ascii", "replace").decode()
    assert failure.rid == RID.format(1)
    assert plain.startswith(failure.reason)
    assert len(failure.reason) >= min(len(plain), 200)


def test_a_text_cut_at_a_space_is_still_read(tmp_path: Path) -> None:
    for length in range(190, 240):
        ring = FailureRing(tmp_path / "ring", slots=1)
        ring.record(RID.format(1), "x" * length + " y")
        ring.close()
        assert len(FailureReader(tmp_path / "ring").poll()) == 1


def test_a_slot_torn_at_any_byte_is_the_old_failure_or_the_new_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    ring = FailureRing(path, slots=2)
    for number in range(1, 11):
        ring.record(RID.format(number), f"reason {number}")
    before = path.read_bytes()
    ring.record(RID.format(11), "reason 11")
    after = path.read_bytes()
    ring.close()
    genuine = {Failure(number, RID.format(number), f"reason {number}") for number in range(1, 12)}
    for slot in (0, 1):
        for at in range(256):
            edge = slot * 256 + at
            path.write_bytes(before[: slot * 256] + after[slot * 256 : edge] + before[edge:])
            assert set(FailureReader(path).poll()) <= genuine


def test_a_failure_that_the_header_does_not_count_yet_is_seen(tmp_path: Path) -> None:
    """The writer was killed between its two writes."""
    path = tmp_path / "ring"
    ring, reader = FailureRing(path, slots=4), FailureReader(path)
    for number in range(1, 8):
        header = path.read_bytes()[:256]
        ring.record(RID.format(number), "killed")
        with path.open("r+b") as file:
            file.write(header)
        assert [failure.sequence for failure in reader.poll()] == [number]
        assert reader.poll() == []
    ring.close()


def test_a_new_ring_under_the_old_name_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "ring"
    reader = FailureReader(path)
    for launch in range(2):
        ring = FailureRing(path, slots=4)  # the same process id in a new container
        ring.record(RID.format(launch), "again")
        ring.close()
        assert [failure.rid for failure in reader.poll()] == [RID.format(launch)]
    assert reader.lost == 0


def test_a_slot_overtaken_while_it_was_read_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ring"
    ring, reader = FailureRing(path, slots=8), FailureReader(path)
    for number in range(1, 4):
        ring.record(RID.format(number), "x")
    whole = path.read_bytes()
    path.write_bytes(whole[: 2 * 256] + bytes(256) + whole[3 * 256 :])  # what a reader saw of slot 2 a moment earlier
    real, calls = failure_ring._decode, []

    def decode(slot: bytes) -> tuple[int, str] | None:
        calls.append(slot)
        if len(calls) == 9:  # the first pass is over, the writer has finished slot 2
            path.write_bytes(whole)
        return real(slot)

    monkeypatch.setattr(failure_ring, "_decode", decode)
    assert [failure.sequence for failure in reader.poll()] == [1, 2, 3]
    assert reader.lost == 0
    ring.close()


def test_many_threads_may_record(tmp_path: Path) -> None:
    ring = FailureRing(tmp_path / "ring", slots=500)

    def record(thread: int) -> None:
        for number in range(100):
            ring.record(RID.format(thread * 100 + number), "x")

    threads = [threading.Thread(target=record, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ring.close()
    reader = FailureReader(tmp_path / "ring")
    assert {failure.rid for failure in reader.poll()} == {RID.format(number) for number in range(500)}
    assert reader.lost == 0


@given(st.binary(max_size=1200))
def test_any_bytes_give_failures_or_a_format_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(data)
    assert FailureReader(path).poll() == []


@pytest.mark.parametrize(
    "title", ["hs-failures 2 4 00000000", "hs-failures 1 99999 00000000", "hs-failures 1 0 00000000"]
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, title: str) -> None:
    (tmp_path / "ring").write_bytes(failure_ring._encode(0, title))
    with pytest.raises(FormatError, match="ring"):
        FailureReader(tmp_path / "ring").poll()


@pytest.mark.tmpfs
def test_it_is_written_on_a_full_tmpfs(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=1m") as scratch:
        ring = FailureRing(scratch / "failed-1-r0")
        fill(scratch)
        reader = FailureReader(scratch / "failed-1-r0")
        for number in range(FAILURE_SLOTS + 10):
            ring.record(RID.format(number), "no space left on device")
        assert len(reader.poll()) == FAILURE_SLOTS
        assert reader.lost == 10
        with pytest.raises(OSError, match="No space left"):
            FailureRing(scratch / "failed-2-r0")
        ring.close()
