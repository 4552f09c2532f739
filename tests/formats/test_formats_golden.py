"""Files written by the first release of the formats are read to exact values, and are what is still written today."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zstandard

import golden_files
from golden_files import GOLDEN, IDS, NAME, STATES
from golden_floats import FLOATS, LAYOUT
from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetPaths
from hs_formats.failure_ring import Failure, FailureReader
from hs_formats.fixed_record import read_record
from hs_formats.hsz_decode import HszFile
from hs_formats.ledger import read_ledger
from hs_formats.manifest import ManifestReader
from hs_formats.part import inspect_part
from hs_formats.responses import Response, iter_facts
from hs_formats.stored import read_stored
from hs_formats.timeline import read_timeline
from unhsz import unhsz

FILES = {path.name for path in GOLDEN.iterdir() if path.suffix not in {".py", ".md"} and path.is_file()}


def test_nothing_is_missing_and_nothing_is_left_over() -> None:
    assert set(golden_files.build()) == FILES


@pytest.mark.parametrize("name", sorted(FILES))
def test_todays_writers_give_the_same_bytes(name: str) -> None:
    if name.endswith((".zst", ".hsz")) and zstandard.ZSTD_VERSION != (1, 5, 7):
        pytest.skip("another libzstd may compress to other bytes")
    assert golden_files.build()[name] == (GOLDEN / name).read_bytes()


def test_the_part() -> None:
    with (GOLDEN / str(NAME)).open("rb") as file:
        info = inspect_part(file, NAME)
    assert (info.input_ids.offset, info.hidden_states.offset) == (1024, 1152)
    assert info.meta.boundaries == [2, 4]
    assert info.meta.nonce == "0123456789abcdef"
    for mapped in (True, False):
        loaded = torch.load(GOLDEN / str(NAME), weights_only=True, mmap=mapped)
        assert list(loaded) == ["input_ids", "hidden_states", "meta"]
        assert loaded["input_ids"].tolist() == IDS
        assert loaded["hidden_states"].dtype == torch.bfloat16
        assert torch.equal(loaded["hidden_states"].view(torch.int16), STATES.view(torch.int16))
        assert loaded["meta"] == info.meta.to_plain()


@pytest.mark.parametrize("suffix", ["zst", "hsz"])
def test_the_stored_part(suffix: str) -> None:
    stored = GOLDEN / f"{NAME}.{suffix}"
    assert read_stored(stored) == (GOLDEN / str(NAME)).read_bytes()
    inspect_part(io.BytesIO(read_stored(stored)), NAME)


@pytest.mark.parametrize("folder", [GOLDEN, GOLDEN / "earlier"], ids=["today", "earlier"])
@pytest.mark.parametrize("codec", ["default", "fast"])
def test_stored_floats(folder: Path, codec: str) -> None:
    """Earlier writers searched planes for matches."""
    data = (folder / f"floats.{codec}.hsz").read_bytes()
    assert unhsz(data) == FLOATS
    opened = HszFile.of_bytes(data)
    assert b"".join(opened.blocks()) == FLOATS
    assert opened.index.codec == codec
    assert [segment.floats for segment in opened.floats] == list(LAYOUT.floats)
    words = np.frombuffer(FLOATS, "<u2", 520 * 3 * 3, LAYOUT.floats[0].start).reshape(520, 3, 3)
    values = (words.astype("<u4") << np.uint32(16)).view("<f4")
    for slot, statistics in enumerate(opened.index.statistics):
        assert statistics.finite
        assert statistics.rows == 17
        assert statistics.max_abs == np.abs(values[:, slot]).max()
        assert statistics.rms == pytest.approx(np.sqrt(np.square(values[::32, slot].astype(np.float64)).mean()))


def test_the_control_files(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path)
    control.create()
    for name in ("mover.json", "server-4242-r0.json", "failed-4242-r0"):
        shutil.copy(GOLDEN / name, control.root)
    shutil.copy(GOLDEN / "run.json", control.runs / "0000abcd.json")
    shutil.copy(GOLDEN / "client.json", control.clients / "0000abcd.json")
    assert control.read_mover() == golden_files.MOVER
    assert control.markers() == [(golden_files.MARKER, False)]
    assert control.read_run("0000abcd") == golden_files.RUN
    assert control.read_clients() == [golden_files.CLIENT]
    record = read_record(GOLDEN / "mover.json")
    assert record is not None
    assert (record["state"], record["heartbeat_s"], record["limit_bytes"]) == ("holding", 1234.5, 838860800)
    (path,) = control.failure_paths()
    reader = FailureReader(path)
    assert reader.poll() == [
        Failure(number + 1, f"hs-0000abcd-{number:08d}-00", "no space left on device") for number in (2, 3, 4)
    ]
    assert reader.lost == 2


def test_the_dataset_files(tmp_path: Path) -> None:
    assert DatasetPaths(GOLDEN).read_info() == golden_files.INFO
    shutil.copy(GOLDEN / "manifest.jsonl", tmp_path)
    reader = ManifestReader(tmp_path)
    assert reader.poll() == golden_files.MANIFEST
    assert reader.bad == 0
    assert read_ledger(GOLDEN / "ledger.jsonl") == golden_files.LEDGER
    assert read_timeline(GOLDEN / "timeline.jsonl") == golden_files.TIMELINE
    found = list(iter_facts(GOLDEN / "responses.jsonl"))
    for (_, facts), response in zip(found, golden_files.RESPONSES, strict=True):
        assert {name: getattr(response, name) for name in facts.__struct_fields__} == msgspec.structs.asdict(facts)
    lines = (GOLDEN / "responses.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=Response) for line in lines] == golden_files.RESPONSES
