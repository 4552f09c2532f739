from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from hs_formats.errors import FormatError
from hs_formats.fixed_record import SLOT_BYTES, FixedRecord, read_record
from small_tmpfs import fill, small_tmpfs


def test_the_last_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "record"
    assert read_record(path) is None
    with FixedRecord(path) as record:
        assert read_record(path) is None
        for value in range(5):
            record.write({"value": value, "text": "é\ud83d"})
            assert read_record(path) == {"value": value, "text": "é\ud83d"}
        assert path.stat().st_size == 2 * SLOT_BYTES
    with FixedRecord(path) as record:  # taken over
        assert read_record(path) == {"value": 4, "text": "é\ud83d"}
        record.write({"value": 5})
    assert read_record(path) == {"value": 5}


def _two_writes(path: Path, writes: int) -> tuple[bytes, bytes]:
    """The file before and after write number `writes`; values are as long as each other and differ everywhere."""
    with FixedRecord(path) as record:
        for value in range(writes - 1):
            record.write({"v": chr(97 + value % 26) * 30})
        before = path.read_bytes()
        record.write({"v": chr(97 + (writes - 1) % 26) * 30})
        return before, path.read_bytes()


# 9 → 10, 98 → 100, 99 → 101: the digits of the old and the new sequence number mix to a third one.
@pytest.mark.parametrize("writes", [2, 3, 10, 11, 99, 100, 101, 109, 200])
def test_a_write_torn_at_any_byte_shows_the_old_record_or_the_new(tmp_path: Path, writes: int) -> None:
    path = tmp_path / "record"
    before, after = _two_writes(path, writes)
    old, new = ({"v": chr(97 + (writes - back) % 26) * 30} for back in (2, 1))
    slot = (writes % 2) * SLOT_BYTES
    for at in [*range(140), *range(140, SLOT_BYTES, 97), SLOT_BYTES]:
        path.write_bytes(before[:slot] + after[slot : slot + at] + before[slot + at :])
        assert read_record(path) in (old, new)
        # and the next writer goes on from there, without harming the good slot
        with FixedRecord(path) as record:
            record.write({"v": "next"})
        assert read_record(path) == {"v": "next"}
        path.write_bytes(after[:slot] + before[slot : slot + at] + after[slot + at :])  # pages in the other order
        assert read_record(path) in (old, new)


def test_a_failed_write_keeps_the_record_and_is_repeated_in_the_same_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "record"
    real = os.pwrite
    with FixedRecord(path) as record:
        record.write({"v": 1})
        for _ in range(2):

            def torn(fd: int, data: bytes, at: int) -> int:
                real(fd, data[:38], at)
                raise OSError(errno.EIO, "torn")

            monkeypatch.setattr(os, "pwrite", torn)
            with pytest.raises(OSError, match="torn"):
                record.write({"v": 2})
            monkeypatch.setattr(os, "pwrite", real)
            assert read_record(path) == {"v": 1}
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:99], at))
        with pytest.raises(OSError, match="only 99 of 4096"):
            record.write({"v": 2})
        monkeypatch.setattr(os, "pwrite", real)
        record.write({"v": 3})
    assert read_record(path) == {"v": 3}


@pytest.mark.parametrize("payload", [{"a": "x" * SLOT_BYTES}, {"a": float("nan")}, {"a": object()}])
def test_what_cannot_be_written_is_refused_and_changes_nothing(tmp_path: Path, payload: dict[str, object]) -> None:
    path = tmp_path / "record"
    with FixedRecord(path) as record:
        record.write({"v": 1})
        with pytest.raises(FormatError):
            record.write(payload)
    assert read_record(path) == {"v": 1}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("x")
    (tmp_path / "record").symlink_to("victim")
    with pytest.raises(OSError):  # noqa: PT011  ELOOP has no class of its own
        FixedRecord(tmp_path / "record")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 2 * SLOT_BYTES))
def test_any_bytes_are_a_record_none_or_a_format_error(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.unlink(missing_ok=True)
    with FixedRecord(path) as record:
        record.write({"v": 1})
        record.write({"v": 2})
    data = path.read_bytes()
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    assert read_record(path) in ({"v": 1}, {"v": 2}, None)
    path.write_bytes(noise)
    with contextlib.suppress(FormatError):
        assert read_record(path) is None


@pytest.mark.tmpfs
def test_it_is_written_on_a_full_tmpfs(tmp_path: Path) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=256k") as scratch:
        with FixedRecord(scratch / "mover.json") as record:
            ballast = fill(scratch)
            for value in range(10):
                record.write({"value": value, "pad": "x" * 3000})
            assert read_record(scratch / "mover.json") == {"value": 9, "pad": "x" * 3000}
        with FixedRecord(scratch / "mover.json") as record:  # a new mover takes over while it is full
            record.write({"value": 10})
        assert read_record(scratch / "mover.json") == {"value": 10}
        with pytest.raises(OSError, match="No space left"):
            FixedRecord(scratch / "other.json")
        assert read_record(scratch / "other.json") is None
        ballast.unlink()
        with FixedRecord(scratch / "other.json") as record:
            record.write({"value": 1})
