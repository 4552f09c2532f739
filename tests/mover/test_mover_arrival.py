"""How parts arrive, and what becomes of file events: every style, bursts, dead watchers, inotify refused, idle cost."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers.inotify import InotifyObserver

from hs_formats.control import ControlFolder
from hs_formats.names import PartName, temporary_name
from hs_mover import lane, watch
from markers import make_marker
from movers import check_moved, lines_of, mover_process, mover_thread, raw_lines, scratch_parts, state_of, wait_for
from parts import NONCE, drop_part, make_part, part_name, register

RUN = "00c0ffee"


def rid(row: int) -> str:
    return f"hs-{RUN}-{row:08d}-00"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    register(tmp_path / "scratch", RUN, "set")
    return tmp_path / "scratch"


@pytest.fixture
def dst(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_every_style_of_arrival(src: Path, dst: Path, tmp_path: Path) -> None:
    parts = {part_name(rid(row), 0, 64, 64): make_part(rid(row), 0, 64, 64, seed=row, hidden=256) for row in range(5)}
    names = list(parts)
    outside = tmp_path / "outside"
    outside.mkdir()
    with mover_process(src, dst):
        wait_for(lambda: state_of(src) is not None)
        drop_part(src, rid(0), 0, 64, 64, data=parts[names[0]])
        (outside / "x").write_bytes(parts[names[1]])
        (outside / "x").rename(src / names[1])
        (outside / "y").write_bytes(parts[names[2]])
        os.link(outside / "y", src / names[2])
        with (src / names[3]).open("wb", buffering=0) as file:  # in place, slowly
            for at in range(0, len(parts[names[3]]), 20_000):
                file.write(parts[names[3]][at : at + 20_000])
                time.sleep(0.15)
        with (src / names[4]).open("wb") as file:  # closed half-way and opened again
            file.write(parts[names[4]][:100_000])
        time.sleep(1.2)
        with (src / names[4]).open("ab") as file:
            file.write(parts[names[4]][100_000:])
        wait_for(lambda: not scratch_parts(src))
    check_moved(dst / "set", parts)
    assert (outside / "y").read_bytes() == parts[names[2]]
    assert not (dst / "set" / "quarantine").exists()


def test_parts_there_before_the_start_and_events_at_once(src: Path, dst: Path) -> None:
    early = drop_part(src, rid(1), 0, 4, 4)
    with mover_process(src, dst):
        wait_for(lambda: not early.exists())
        delays = []
        for row in range(2, 12):
            time.sleep(0.1)
            begin = time.monotonic()
            drop_part(src, rid(row), 0, 4, 4, seed=row)
            wait_for(lambda: not scratch_parts(src))
            delays.append(time.monotonic() - begin)
    assert sorted(delays)[5] < 0.5  # scanning alone would take half a second on average, a second at worst


@pytest.mark.slow
def test_a_burst_of_many_small_parts(src: Path, dst: Path) -> None:
    parts = {}
    with mover_process(src, dst):
        wait_for(lambda: state_of(src) is not None)
        for row in range(5_200):
            data = make_part(rid(row), 0, 4, 4)
            path = drop_part(src, rid(row), 0, 4, 4, data=data)
            parts[path.name] = data
        wait_for(lambda: not scratch_parts(src), timeout_s=150)
    check_moved(dst / "set", parts)
    assert len(raw_lines(dst / "set")) == len(parts)
    folders = [len(list(folder.iterdir())) for folder in (dst / "set" / "data" / RUN).iterdir()]
    assert max(folders) <= 2000


def test_a_handler_that_fails_and_dead_observers_do_no_harm(
    src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lane.Lane, "_something_came", lambda self: 1 / 0)
    with mover_thread(src, dst) as running:
        drop_part(src, rid(1), 0, 4, 4)
        wait_for(lambda: not scratch_parts(src))
        observer = running._watch._observer
        assert isinstance(observer, InotifyObserver)
        assert observer.is_alive()
        for emitter in observer.emitters:
            emitter.stop()
            emitter.join()
        assert observer.is_alive()
        wait_for(lambda: running._watch._observer not in (observer, None))
        drop_part(src, rid(2), 0, 4, 4)
        wait_for(lambda: not scratch_parts(src))
    assert any("the watch on" in message for message in caplog.messages)
    assert len(lines_of(dst / "set")) == 2


@pytest.mark.parametrize(("number", "word"), [(errno.ENOSPC, "max_user_watches"), (errno.EMFILE, "max_user_instances")])
def test_inotify_limits_fall_back_to_scanning(
    src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, word: str
) -> None:
    def refuse(self: Any) -> None:
        raise OSError(number, "inotify limit reached")

    monkeypatch.setattr(InotifyObserver, "start", refuse)
    with mover_thread(src, dst) as running:
        for row in range(3):
            drop_part(src, rid(row), 0, 4, 4, seed=row)
            wait_for(lambda: not scratch_parts(src), timeout_s=5)
        assert not running._watch.active
        state = state_of(src)
        assert state is not None
        assert state.state == "moving"  # not mistaken for a full disk
    assert len([message for message in caplog.messages if word in message]) == 1


def test_an_observer_that_never_fires(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch._Handler, "dispatch", lambda self, event: None)
    with mover_thread(src, dst):
        for row in range(3):
            drop_part(src, rid(row), 0, 4, 4, seed=row)
            wait_for(lambda: not scratch_parts(src), timeout_s=5)


def test_each_part_is_tried_once(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    plain = lane.Lane._task

    def counted(self: lane.Lane, part: Any) -> Any:
        tried.append(str(part.name))
        return plain(self, part)

    monkeypatch.setattr(lane.Lane, "_task", counted)
    with mover_thread(src, dst):
        for row in range(100):
            drop_part(src, rid(row), 0, 4, 4, seed=row)
        wait_for(lambda: not scratch_parts(src))
        time.sleep(1.5)
    assert len(tried) == len(set(tried)) == 100


def test_temporaries_of_a_living_launch_are_kept(src: Path, dst: Path) -> None:
    control = ControlFolder(src)
    marker = make_marker(nonce=NONCE, pid=os.getpid())
    name = PartName.parse(part_name(rid(1), 0, 4, 4))
    living, dead = src / temporary_name(name, NONCE), src / temporary_name(name, "f" * 16)
    held = control.hold_marker(marker)
    living.write_bytes(b"half")
    dead.write_bytes(b"half")
    with mover_process(src, dst):
        wait_for(lambda: not dead.exists())
        assert living.exists()
        held.release()
        wait_for(lambda: not living.exists())


@pytest.mark.slow
def test_an_idle_mover_costs_next_to_nothing(src: Path, dst: Path) -> None:
    with mover_process(src, dst) as process:
        wait_for(lambda: state_of(src) is not None)
        time.sleep(2)
        stat = Path(f"/proc/{process.pid}/stat")
        fields = stat.read_text().rsplit(") ", 1)[1].split()
        begin, ticks = time.monotonic(), int(fields[11]) + int(fields[12])
        time.sleep(10)
        fields = stat.read_text().rsplit(") ", 1)[1].split()
        used_s = (int(fields[11]) + int(fields[12]) - ticks) / os.sysconf("SC_CLK_TCK")
        share = used_s / (time.monotonic() - begin)
    print(f"idle share of a core: {share:.2%}")
    assert share < 0.02
