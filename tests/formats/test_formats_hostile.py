"""Any bytes in the place of one of our files give a value, nothing, or a `FormatError`; and no pickle of others runs.

Container, stored files, names, rows, rings and records have fuzz tests beside their own; here is the rest.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from hs_formats.control import CaptureStatistics, ClientState, ControlFolder, Marker, MoverState, RunState
from hs_formats.dataset import DatasetPaths
from hs_formats.doctor_pass import DoctorPass, read_pass
from hs_formats.errors import FormatError
from hs_formats.failure_ring import FailureRing
from hs_formats.fixed_record import FixedRecord
from hs_formats.index import DatasetIndex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName
from hs_formats.part import inspect_part
from hs_formats.reader import HiddenStateDataset
from hs_formats.sniff import sniff_layout
from hs_formats.stored import read_stored
from hs_formats.verified import VerifiedSet
from part_factory import dataset_info, random_record, write_dataset
from parts import drop_part, register

RUN = "0000abcd"


def _any_json(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | numbers | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
        max_leaves=6,
    )


_json = _any_json(st.floats())
_strict_json = _any_json(st.floats(allow_nan=False, allow_infinity=False))
"""What our writer of records lets pass."""


def _changed(good: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Noise; any JSON; and `good` with one value replaced by any other, or cut."""
    text = json.dumps(good).encode()
    one = st.tuples(st.sampled_from(sorted(good)), _json).map(lambda kv: json.dumps({**good, kv[0]: kv[1]}).encode())
    return (
        st.binary(max_size=80)
        | _json.map(lambda v: json.dumps(v).encode())
        | one
        | one.map(lambda t: t[:-9])
        | (st.integers(0, len(text)).map(lambda at: text[:at] + b"[" * 20_000))
    )


def _example(kind: type) -> dict[str, Any]:
    """A value for each field of a class, by the name of its type."""
    values = {"int": 1, "float": 1.0, "str": "x", "bool": True}
    return {name: values.get(str(annotation), []) for name, annotation in inspect.get_annotations(kind).items()}


RECORDS = (".hs/mover.json", f".hs/clients/{RUN}.json", ".hs/capture-1-r0.json", ".hs/doctor-8000.json")
VERIFIED = {"format": "hs-verified", "version": 1, "verified_at": "x", "checks": [], "count": 0, "samples": ""}
INFO = asdict(dataset_info()) | {"format": "hs-dataset", "version": 1}
RUN_STATE = asdict(RunState(run=RUN, dataset="d", pid=1))
FILES: list[tuple[str, dict[str, Any], Callable[[Path], object]]] = [
    ("dataset.json", INFO, lambda root: DatasetPaths(root).read_info()),
    ("verified.json", VERIFIED, lambda root: VerifiedSet.read(DatasetPaths(root))),
    ("manifest/m.jsonl", _example(ManifestLine), lambda root: DatasetIndex.load(DatasetPaths(root))),
    ("ledger/l.jsonl", {"type": "done", **_example(Done)}, lambda root: DatasetIndex.load(DatasetPaths(root))),
    (".hs/mover.json", _example(MoverState), lambda root: ControlFolder(root).read_mover()),
    (f".hs/runs/{RUN}.json", RUN_STATE, lambda root: ControlFolder(root).read_run(RUN)),
    (f".hs/clients/{RUN}.json", _example(ClientState), lambda root: ControlFolder(root).read_clients()),
    (".hs/server-1-r0.json", _example(Marker), lambda root: ControlFolder(root).markers()),
    (".hs/capture-1-r0.json", _example(CaptureStatistics), lambda root: ControlFolder(root).read_statistics(1, 0)),
    (".hs/doctor-8000.json", _example(DoctorPass), lambda root: read_pass(ControlFolder(root), 8000)),
]


@pytest.mark.parametrize(("name", "good", "read"), FILES, ids=[name for name, *_ in FILES])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_are_a_value_nothing_or_a_format_error(
    tmp_path: Path, name: str, good: dict[str, Any], read: Callable[[Path], object], data: st.DataObject
) -> None:
    if not (tmp_path / ".hs").exists():
        ControlFolder(tmp_path).create()
        paths = DatasetPaths(tmp_path)
        paths.create()
        if name != "dataset.json":
            paths.write_info(dataset_info())
    path = tmp_path / name
    if name in RECORDS and data.draw(st.booleans()):
        key = data.draw(st.sampled_from([*good, "new"]))
        path.unlink(missing_ok=True)
        with FixedRecord(path) as record:
            record.write({**good, key: data.draw(_strict_json)})
    else:
        path.write_bytes(data.draw(_changed(good)) + data.draw(st.sampled_from([b"", b"\n"])))
    try:
        read(tmp_path)
    except FormatError as error:
        said = str(error)
    else:
        said = ""
    assert len(said) < 2000


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("name", ["dataset.json", "verified.json", "manifest/m.jsonl", "ledger/0000abcd.jsonl", "data"])
def test_what_is_no_file_stops_no_reader(tmp_path: Path, name: str, kind: str) -> None:
    """Nobody writes to the pipe: who opened it as a file would wait for ever. The device never ends."""
    paths = write_dataset(tmp_path / "set", [random_record(0, 5)])
    place = next(paths.data.rglob("*.hsz")) if name == "data" else paths.root / name
    place.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(place)
        case "folder":
            place.mkdir()
        case _:
            place.symlink_to("/dev/zero")

    def read_all() -> None:
        VerifiedSet.read(paths)
        HiddenStateDataset(str(paths.root))[0]

    with pytest.raises((OSError, FormatError), match=r"regular file|s a directory"):
        read_all()


def test_lines_are_not_appended_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    (tmp_path / "m.jsonl").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic"):
        AppendLog(tmp_path / "m.jsonl")
    assert precious.read_text() == "mine\n"


class _Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def _evil_files(target: Path) -> dict[str, bytes]:
    """A bare pickle; torch's own kind of file; and a good part whose pickle was exchanged for one that acts."""
    bare = pickle.dumps({"input_ids": _Evil(target), "hidden_states": _Evil(target)}, protocol=2)
    torchs = io.BytesIO()
    with zipfile.ZipFile(torchs, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("part/data.pkl", bare)
    return {"bare": bare, "zip": torchs.getvalue()}


def _exchanged(part: bytes, target: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(part)) as good, zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as evil:
        for entry in good.namelist():
            data = pickle.dumps(_Evil(target), protocol=2) if entry.endswith("data.pkl") else good.read(entry)
            evil.writestr(entry, data)
    return out.getvalue()


def test_the_pickles_here_do_act(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pickle.loads(_evil_files(tmp_path / "no" / "folder")["bare"])
    pickle.loads(_evil_files(tmp_path / "pwned")["bare"])
    assert (tmp_path / "pwned").exists()


@pytest.mark.parametrize("kind", ["bare", "zip", "exchanged"])
def test_the_reader_runs_no_pickle(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "pwned"
    paths = write_dataset(tmp_path / "set", [random_record(0, 5)])
    (stored,) = (path for path in paths.data.rglob("*") if path.is_file())
    part = read_stored(stored)
    evil = _exchanged(part, target) if kind == "exchanged" else _evil_files(target)[kind]
    stored.unlink()
    plain = stored.with_name(stored.name.partition(".pt")[0] + ".pt")
    plain.write_bytes(evil)
    for manifest in paths.manifest.glob("*.jsonl"):
        manifest.write_text(manifest.read_text().replace(stored.name, plain.name))
    with pytest.raises(FormatError):
        HiddenStateDataset(str(tmp_path / "set"))[0]
    assert not target.exists()


def test_the_mover_runs_no_pickle(tmp_path: Path) -> None:
    from movers import lines_of, move_once

    target = tmp_path / "pwned"
    src, dst = tmp_path / "scratch", tmp_path / "data"
    register(src, RUN, "set")
    good = drop_part(src, f"hs-{RUN}-00000009-00", 0, 4, 4)
    files = {**_evil_files(target), "exchanged": _exchanged(good.read_bytes(), target)}
    for row, data in enumerate(files.values()):
        drop_part(src, f"hs-{RUN}-{row:08d}-00", 0, 4, 4, data=data)
    dst.mkdir()
    move_once(src, dst)
    lines = lines_of(dst / "set")
    assert {name: line.status for name, line in lines.items() if line.status != "quarantined"} == {
        good.name: lines[good.name].status
    }
    assert len(lines) == 1 + len(files)
    assert not target.exists()


def test_a_zip_bomb_is_refused_unread(tmp_path: Path) -> None:
    part = drop_part(tmp_path, f"hs-{RUN}-00000001-00", 0, 4, 4)
    bomb = io.BytesIO()
    with zipfile.ZipFile(part) as good, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in good.namelist():
            archive.writestr(entry, bytes(64 << 20) if "/data/" in entry else good.read(entry))
    assert len(bomb.getvalue()) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            inspect_part(bomb, PartName.parse(part.name))
        assert sniff_layout(bomb, len(bomb.getvalue())).floats == ()
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_what_is_made_in_scratch_is_private(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "scratch")
    before = os.umask(0)
    try:
        control.create()
        control.register_run(RunState(run=RUN, dataset="d", pid=1))
        held = control.hold_marker(Marker(**{**_example(Marker), "pid": 1, "rank": 0}))
        with control.client_record(RUN) as record, FixedRecord(control.mover_file) as mover, control.credit():
            record.write({})
            mover.write({})
            FailureRing(control.failure_path(1, 0)).close()
    finally:
        os.umask(before)
    made = {path: path.stat().st_mode & 0o777 for path in (control.scratch, *control.scratch.rglob("*"))}
    assert len(made) == 10
    assert {path: mode for path, mode in made.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}
    held.release()
