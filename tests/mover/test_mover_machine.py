"""The mover as a state machine: parts arrive, good, bad, again and changed; events are lost; it is killed at any
durable step and started again; the destination fills and is emptied. Each part is always in scratch or in the dataset.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hs_formats.errors import HsError
from hs_formats.hashing import xxh3_hex
from hs_formats.stored import read_stored
from hs_mover import lane, recover
from movers import lines_of, move_once, raw_lines, scratch_parts
from parts import drop_part, make_part, part_name, register

RUN = "00c0ffee"
ROWS = 6
COUNTED = ("fdatasync", "fsync", "mkdir", "rename", "unlink", "writev")


def rid(row: int) -> str:
    return f"hs-{RUN}-{row:08d}-00"


def name_of(row: int) -> str:
    return part_name(rid(row), 0, 6, 6)


def content(row: int, seed: int = 0) -> bytes:
    return make_part(rid(row), 0, 6, 6, seed=10 * row + seed)


def in_a_child(work: Callable[[], None]) -> int:
    """Exit status of `work` in a forked process: 0, 5 for a storage error, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            logging.disable()
            work()
            code = 0
        except HsError as error:
            code = error.exit_code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Mover(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hs-machine-"))
        self.src, self.dst = self.folder / "scratch", self.folder / "data"
        self.good: dict[str, bytes] = {}
        self.bad: dict[str, bytes] = {}
        self.conflicts: list[bytes] = []
        self.full = False
        self.deaf = False

    @initialize()
    def begin(self) -> None:
        register(self.src, RUN, "set")

    # -- what arrives

    @rule(row=st.integers(0, ROWS - 1))
    def arrive(self, row: int) -> None:
        """New, or the same once more."""
        if name_of(row) not in self.bad and not self._changed_in_scratch(row):
            drop_part(self.src, rid(row), 0, 6, 6, data=content(row))
            self.good[name_of(row)] = content(row)

    @rule(row=st.integers(ROWS, ROWS + 2), kind=st.sampled_from(["cut", "nan"]))
    def arrive_bad(self, row: int, kind: str) -> None:
        if name_of(row) in self.bad:
            return
        data = content(row)[:-9] if kind == "cut" else content(row).replace(content(row)[-400:-396], b"\xff" * 4)
        drop_part(self.src, rid(row), 0, 6, 6, data=data)
        self.bad[name_of(row)] = data

    @rule(row=st.integers(0, ROWS - 1))
    def arrive_changed(self, row: int) -> None:
        """Other bytes under the name of a part that was moved already."""
        if name_of(row) in self.good and name_of(row) not in scratch_parts(self.src):
            data = content(row, 1 + len(self.conflicts) % 8)
            drop_part(self.src, rid(row), 0, 6, 6, data=data)
            self.conflicts.append(data)

    def _changed_in_scratch(self, row: int) -> bool:
        path = self.src / name_of(row)
        return path.exists() and path.read_bytes() != content(row)

    # -- what happens to the mover and its disk

    @rule(deaf=st.booleans())
    def events(self, deaf: bool) -> None:
        self.deaf = deaf

    @precondition(lambda self: not self.full)
    @rule()
    def fills_up(self) -> None:
        self.full = True

    @precondition(lambda self: self.full)
    @rule()
    def is_emptied(self) -> None:
        self.full = False

    @rule()
    def runs(self) -> None:
        code = in_a_child(self._move)
        assert code == (5 if self.full and scratch_parts(self.src) else 0)

    @rule(step=st.integers(1, 60))
    def is_killed(self, step: int) -> None:
        def dying() -> None:
            calls = [0]

            def counted(plain: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    calls[0] += 1
                    if calls[0] >= step:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return plain(*args, **kwargs)

                return call

            for name in COUNTED:
                setattr(os, name, counted(getattr(os, name)))
            self._move()

        assert in_a_child(dying) in (0, 5, -signal.SIGKILL)

    def _move(self) -> None:
        """In a child: once over, with short waits."""
        lane.SETTLE_S = 0.05
        recover._PATIENCE_S = 0.0
        if self.deaf:
            lane.Lane._something_came = lambda _: None  # type: ignore[method-assign,assignment]
        if self.full:
            writev = os.writev

            def refused(fd: int, pieces: Any) -> int:
                if str(Path(f"/proc/self/fd/{fd}").readlink()).endswith(".tmp"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return writev(fd, pieces)

            os.writev = refused
        move_once(self.src, self.dst, codec="default")

    # -- what must hold

    @invariant()
    def nothing_is_lost(self) -> None:
        if not self.src.exists():
            return
        lines = lines_of(self.dst / "set") if (self.dst / "set").is_dir() else {}
        for name, data in (self.good | self.bad).items():
            path = self.src / name
            if path.exists() and path.read_bytes() == data:
                continue
            line = lines[name]
            assert line.xxh3 == xxh3_hex([data])
            stored = self.dst / "set" / line.path
            assert (read_stored(stored) if line.status == "stored" else stored.read_bytes()) == data
            assert (line.status == "stored") == (name in self.good)

    def teardown(self) -> None:
        try:
            if self.src.exists():
                self.full = False
                assert in_a_child(self._move) == 0
                self._all_is_there_once()
        finally:
            shutil.rmtree(self.folder)

    def _all_is_there_once(self) -> None:
        assert scratch_parts(self.src) == []
        self.nothing_is_lost()
        dataset = self.dst / "set"
        if not (self.good or self.bad):
            return
        assert set(lines_of(dataset)) == set(self.good) | set(self.bad)
        assert not list(self.dst.rglob("*.tmp"))
        stored = [path for path in (dataset / "data").rglob("*") if path.is_file()] if self.good else []
        assert len(stored) == len(self.good)
        quarantined = {
            path.read_bytes() for path in (dataset / "quarantine").glob("*.r00.pt*") if path.suffix != ".json"
        }
        assert quarantined == {*self.bad.values(), *self.conflicts}
        for line in raw_lines(dataset):
            if line["status"] == "stored":
                assert line["xxh3"] == xxh3_hex([self.good[line["part"]]])


TestMover = Mover.TestCase
TestMover.settings = settings(
    max_examples=int(os.environ.get("HS_EXAMPLES", "6")),
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestMover = pytest.mark.slow(TestMover)
