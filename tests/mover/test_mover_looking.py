"""When scratch is looked at: at once when something came, but not more often than looking costs; every second else."""

from __future__ import annotations

from pathlib import Path

import pytest

from hs_formats.control import ControlFolder
from hs_mover import looking
from hs_mover.backlog import Backlog
from hs_mover.lock import ScratchLock
from hs_mover.looking import Looking
from hs_mover.watch import FolderWatch
from parts import drop_part


class Clock:
    """A monotonic clock that stands until it is set; each look at scratch takes `cost_s`."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.cost_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def look(self) -> None:
        self.now_s += self.cost_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(looking, "time", made)
    return made


@pytest.fixture
def looks(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Looking:
    control = ControlFolder(tmp_path / "scratch")
    control.create()
    lock, watch = ScratchLock(control), FolderWatch(control.scratch, lambda: None)
    monkeypatch.setattr(lock, "ensure", lambda: None)
    monkeypatch.setattr(watch, "ensure", lambda: None)
    backlog = Backlog(budget_bytes=1 << 30, budget_parts=10)
    return Looking(control, backlog, lock=lock, watch=watch, looked=clock.look)


def test_it_looks_at_start_and_then_every_second(looks: Looking, clock: Clock) -> None:
    assert looks.look_if_due()
    assert not looks.look_if_due()
    assert looks.due_s() == clock.now_s + looking.SCAN_S
    clock.now_s = looks.due_s()
    assert looks.look_if_due()


def test_it_looks_soon_when_something_came_and_rarely_when_looking_takes_long(looks: Looking, clock: Clock) -> None:
    assert looks.look_if_due()
    looks.again()
    soon_s = looks.due_s() - clock.now_s
    assert 0 < soon_s < looking.SCAN_S / 10
    assert not looks.look_if_due()
    clock.now_s = looks.due_s()
    clock.cost_s = 0.05
    assert looks.look_if_due()
    looks.again()
    assert looks.due_s() - clock.now_s == pytest.approx(0.5)
    clock.cost_s = 7.0
    clock.now_s = looks.due_s()
    assert looks.look_if_due()
    looks.again()
    clock.now_s += looking.SCAN_S  # whatever it costs, once a second
    assert looks.look_if_due()


def test_what_it_finds_is_in_the_backlog_once(looks: Looking, clock: Clock, tmp_path: Path) -> None:
    path = drop_part(tmp_path / "scratch", "hs-0000abcd-00000001-00", 0, 3, 3)
    for _ in range(2):
        assert looks.look_if_due()
        clock.now_s += looking.SCAN_S
    assert list(looks._backlog.names) == [path.name]
    path.unlink()
    assert looks.look_if_due()
    assert list(looks._backlog.names) == []


def test_a_folder_that_is_gone_is_said_once_and_looked_at_again(
    looks: Looking, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "scratch").rename(tmp_path / "elsewhere")
    for _ in range(3):
        assert looks.look_if_due()
        clock.now_s += looking.SCAN_S
    assert [record.message.split(":")[0] for record in caplog.records] == [f"cannot look into {tmp_path / 'scratch'}"]
    (tmp_path / "elsewhere").rename(tmp_path / "scratch")
    path = drop_part(tmp_path / "scratch", "hs-0000abcd-00000001-00", 0, 3, 3)
    assert looks.look_if_due()
    assert list(looks._backlog.names) == [path.name]
