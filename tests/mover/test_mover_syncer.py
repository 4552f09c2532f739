"""Stored files are made durable in groups: the order within one, and errors told to those they belong to."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hs_formats.durable import fsync_folder
from hs_mover.meter import Load, Meter, Totals
from hs_mover.syncer import Syncer
from hs_mover.task import Identity, Outcome
from hs_mover.written import Written, write_file

NOBODY = Identity(0, 0, 0, 0)


def outcome(folder: Path, name: str, data: bytes = b"x") -> Outcome:
    written = write_file(folder / name, [data], mover_id="m", meter=Meter())
    return Outcome(identity=NOBODY, line=None, written=written, folders=(folder,))


def written_of(item: Outcome) -> Written:
    assert item.written is not None
    return item.written


class Answers:
    """What `done` was called with, by name."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception | None] = {}
        self._came = threading.Condition()

    def of(self, name: str) -> Any:
        def done(error: Exception | None) -> None:
            with self._came:
                assert name not in self.errors
                self.errors[name] = error
                self._came.notify_all()

        return done

    def wait(self, count: int) -> None:
        with self._came:
            assert self._came.wait_for(lambda: len(self.errors) >= count, timeout=20)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Durable steps in the order in which they ended."""
    found: list[str] = []
    fsync, rename = os.fsync, os.rename

    def name_of(fd: int) -> str:
        return Path(f"/proc/self/fd/{fd}").readlink().name

    def recorded_fsync(fd: int) -> None:
        fsync(fd)
        found.append(f"fsync {name_of(fd)}")

    def recorded_rename(one: Any, other: Any, **kwargs: Any) -> None:
        rename(one, other, **kwargs)
        found.append(f"rename {Path(other).name}")

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "rename", recorded_rename)
    return found


@pytest.fixture
def running() -> Iterator[Syncer]:
    made = Syncer(Meter())
    made.start()
    yield made
    made.close()


def test_a_group_is_synced_then_renamed_then_each_folder_once(tmp_path: Path, calls: list[str]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    items = [outcome(tmp_path / folder, f"{folder}{number}") for folder in "ab" for number in range(20)]
    answers, waiting = Answers(), Syncer(Meter())
    for item in items:
        waiting.submit(item, answers.of(written_of(item).final.name))
    waiting.start()  # all are there already: one group
    answers.wait(40)
    waiting.close()
    assert set(answers.errors.values()) == {None}
    assert [call.split()[0] for call in calls] == ["fsync"] * 40 + ["rename"] * 40 + ["fsync"] * 2
    assert sorted(calls[80:]) == ["fsync a", "fsync b"]
    assert all(written_of(item).final.read_bytes() == b"x" for item in items)
    for item in items:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(written_of(item).fd)


@pytest.mark.parametrize(("takes_s", "threads"), [(0.0, 1), (0.02, 9)], ids=["quick", "slow"])
def test_a_slow_disk_is_given_several_files_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float, threads: int
) -> None:
    by: dict[str, int] = {}

    def fsync(fd: int) -> None:
        del fd
        time.sleep(takes_s)
        name = threading.current_thread().name
        by[name] = by.get(name, 0) + 1

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr("hs_mover.syncer._QUICK_S", 0.01)  # this machine may be busy
    answers, waiting = Answers(), Syncer(Meter())
    for number in range(41):
        waiting.submit(outcome(tmp_path, f"f{number}"), answers.of(str(number)))
    waiting.start()
    answers.wait(41)
    waiting.close()
    assert set(answers.errors.values()) == {None}
    assert sum(by.values()) == 42  # and the folder
    assert len(by) == threads


def test_groups_are_bounded(tmp_path: Path, calls: list[str]) -> None:
    answers, waiting = Answers(), Syncer(Meter(), max_group=4)
    for number in range(10):
        waiting.submit(outcome(tmp_path, f"f{number}"), answers.of(str(number)))
    waiting.start()
    answers.wait(10)
    waiting.close()
    assert calls.count(f"fsync {tmp_path.name}") == 3
    assert set(answers.errors.values()) == {None}


def test_an_error_is_told_to_the_file_it_belongs_to(
    tmp_path: Path, running: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, good, other = outcome(tmp_path, "sick"), outcome(tmp_path, "good"), outcome(tmp_path, "other")
    fsync = os.fsync

    def failing(fd: int) -> None:
        if "sick" in Path(f"/proc/self/fd/{fd}").readlink().name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    written_of(other).temporary.unlink()  # its rename fails
    answers = Answers()
    for name, item in (("sick", sick), ("good", good), ("other", other)):
        running.submit(item, answers.of(name))
    answers.wait(3)
    assert answers.errors["good"] is None
    assert isinstance(answers.errors["sick"], OSError)
    assert answers.errors["sick"].errno == errno.EIO
    assert isinstance(answers.errors["other"], FileNotFoundError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good"]


def test_a_folder_that_cannot_be_synced_fails_all_that_is_in_it(
    tmp_path: Path, running: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()

    def failing(folder: Path) -> None:
        if folder.name == "bad":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync_folder(folder)

    monkeypatch.setattr("hs_mover.syncer.fsync_folder", failing)
    answers = Answers()
    for name, item in (
        ("one", outcome(tmp_path / "bad", "one")),
        ("two", outcome(tmp_path / "bad", "two")),
        ("good", outcome(tmp_path, "good")),
    ):
        running.submit(item, answers.of(name))
    answers.wait(3)
    assert answers.errors["good"] is None
    assert isinstance(answers.errors["one"], OSError)
    assert isinstance(answers.errors["two"], OSError)


def test_what_is_submitted_while_it_ends_is_finished(tmp_path: Path) -> None:
    answers, ending = Answers(), Syncer(Meter())
    for number in range(3):
        ending.submit(outcome(tmp_path, f"f{number}"), answers.of(str(number)))
    ending.start()
    ending.close()
    assert set(answers.errors.values()) == {None}
    assert len(answers.errors) == 3


def test_a_broken_encoder_leaves_no_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError):
        write_file(tmp_path / "f", pieces(), mover_id="m", meter=Meter())
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


# -- the meter

SECONDS = st.floats(0, 1000)


@given(st.tuples(*[SECONDS] * 4), st.tuples(*[SECONDS] * 4), st.floats(0.1, 100), st.integers(1, 64))
def test_shares_are_shares(one: tuple[float, ...], more: tuple[float, ...], wall_s: float, threads: int) -> None:
    before = Totals(5.0, *one)
    after = Totals(5.0 + wall_s, *(a + b for a, b in zip(one, more, strict=True)))
    load = Load.between(before, after, threads=threads)
    for share in (load.encoding, load.writing, load.pacing, load.syncing, load.idle):
        assert 0 <= share <= 1


def test_the_meter_counts_a_sync_that_goes_on_and_takes_pacing_out_of_encoding() -> None:
    meter = Meter()
    before = meter.read()
    meter.add(encoding_s=3.0, writing_s=1.0)
    meter.add(pacing_s=2.0)
    with meter.syncing():
        inside = meter.read()
        assert inside.syncing_s <= inside.at_s - before.at_s
        later = meter.read()
        assert later.syncing_s >= inside.syncing_s
    after = meter.read()
    assert (after.encoding_s, after.writing_s, after.pacing_s) == (1.0, 1.0, 2.0)
    assert after.syncing_s >= later.syncing_s
    assert meter.read().syncing_s == after.syncing_s
