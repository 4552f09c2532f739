"""Damaged part files of every kind: each is stored as it is or quarantined with a reason; none stops the mover."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hs_formats.names import PartName
from hs_formats.stored import CODECS, read_stored
from hs_mover.destination import Destination
from hs_mover.meter import Meter
from hs_mover.store import run_task
from hs_mover.task import Task
from hs_mover.written import put_in_place
from parts import make_part, part_name

RID = "hs-00c0ffee-00000001-00"
NAME = PartName.parse(part_name(RID, 0, 6, 6))
WHOLE = make_part(RID, 0, 6, 6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    src, dst = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("dst")
    return src, dst


def deal(folders: tuple[Path, Path], data: bytes) -> tuple[str, str, bytes]:
    """Status, reason and kept bytes of a part with content `data`."""
    src, dst = folders
    source = src / str(NAME)
    source.write_bytes(data)
    destination = Destination(dst)
    paths = destination.dataset("set")
    task = Task(
        source=source, name=NAME, destination=destination, paths=paths, codec=CODECS["default"], mover_id="m",
        settled=True, known=None, reference=None, expected=None, pace=lambda _: None, meter=Meter(),
        find_line=None,
    )  # fmt: skip
    outcome = run_task(task)
    if outcome.written is not None:
        put_in_place(outcome.written)
    assert outcome.line is not None
    kept = paths.stored_file(outcome.line.path)
    content = read_stored(kept) if outcome.line.status == "stored" else kept.read_bytes()
    for item in (*kept.parent.iterdir(), source):
        item.unlink()
    return outcome.line.status, outcome.line.reason, content


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes(folders: tuple[Path, Path], flips: list[tuple[int, int]]) -> None:
    data = bytearray(WHOLE)
    for at, value in flips:
        data[at] = value
    status, reason, content = deal(folders, bytes(data))
    assert content == data
    assert (status == "quarantined") == bool(reason)
    if bytes(data) == WHOLE:
        assert status == "stored"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=40))
def test_cut_and_glued(folders: tuple[Path, Path], at: int, tail: bytes) -> None:
    data = WHOLE[:at] + tail
    status, reason, content = deal(folders, data)
    assert content == data
    if data != WHOLE:
        assert status == "quarantined"
        assert reason


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_noise(folders: tuple[Path, Path], data: bytes) -> None:
    assert deal(folders, data)[0] == "quarantined"
