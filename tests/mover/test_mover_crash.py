"""SIGKILL at every durable step and at random moments under load: the next mover finishes; nothing lost or doubled."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import xxhash

from hs_formats.hashing import xxh3_hex
from hs_formats.stored import read_stored
from hs_mover import lane
from movers import check_moved, lines_of, move_once, mover_process, raw_lines, scratch_parts, wait_for
from parts import drop_part, make_part, part_name, register
from unhsz import unhsz

RUN = "00c0ffee"
KILLS = int(os.environ.get("HS_KILLS", "10"))
"""SIGKILLs for each codec; 150 make the long form."""

DYING = Path(__file__).parent.parent / "support" / "dying_mover.py"


def rid(row: int) -> str:
    return f"hs-{RUN}-{row:08d}-00"


def fill(src: Path) -> dict[str, bytes]:
    """A good part, a cut one, and one chunk of two ranks."""
    register(src, RUN, "set")
    drop_part(src, rid(1), 0, 6, 6, seed=1)
    drop_part(src, rid(2), 0, 6, 6, data=make_part(rid(2), 0, 6, 6)[:-9])
    for rank in (0, 1):
        drop_part(src, rid(3), 0, 6, 6, rank=rank, writers="all", expected_ranks=[0, 1], seed=3)
    return {path.name: path.read_bytes() for path in src.glob("*.pt")}


def check(src: Path, dataset: Path, parts: dict[str, bytes]) -> None:
    assert scratch_parts(src) == []
    lines = lines_of(dataset)
    assert sorted(lines) == sorted(parts)
    for name, line in lines.items():
        assert line.xxh3 == xxh3_hex([parts[name]])
        same = [other for other in raw_lines(dataset) if other["part"] == name]
        assert len({(other["status"], other["path"]) for other in same}) == 1
    assert lines[part_name(rid(1), 0, 6, 6)].status == "stored"
    assert lines[part_name(rid(2), 0, 6, 6)].status == "quarantined"
    assert sorted(lines[part_name(rid(3), 0, 6, 6, rank=rank)].status for rank in (0, 1)) == ["equal", "stored"]
    for line in lines.values():
        if line.status == "stored":
            assert read_stored(dataset / line.path) == parts[line.part]
        elif line.status == "quarantined":
            assert (dataset / line.path).read_bytes() == parts[line.part]
    files = sorted(str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file())
    known = {line.path for line in lines.values() if line.path}
    others = [name for name in files if name not in known and not name.startswith("manifest/")]
    assert others == [f"quarantine/{part_name(rid(2), 0, 6, 6)}.reason.json"]


@pytest.mark.slow
def test_sigkill_before_every_durable_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "SETTLE_S", 0.05)
    steps, survived = 0, False
    while not survived:
        steps += 1
        src, dst = tmp_path / f"s{steps}", tmp_path / f"d{steps}"
        parts = fill(src)
        command = [sys.executable, str(DYING), str(steps), "--src", str(src), "--dst", str(dst), "--once"]
        command += ["--threads", "1"]
        code = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=60).returncode
        assert code in (0, -signal.SIGKILL)
        survived = code == 0
        move_once(src, dst, threads=1)
        check(src, dst / "set", parts)
    assert steps > 30


def check_independently(dataset: Path, parts: dict[str, bytes]) -> None:
    """With none of the project's code: one line and one file a part, which decodes to its bytes; nothing else there."""
    lines: dict[str, dict[str, str]] = {}
    for manifest in (dataset / "manifest").iterdir():
        for text in manifest.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # torn by a kill
                line = json.loads(text)
                known = lines.setdefault(line["part"], line)
                assert (known["path"], known["xxh3"]) == (line["path"], line["xxh3"])
    assert sorted(lines) == sorted(parts)
    for name, line in lines.items():
        data = (dataset / line["path"]).read_bytes()
        original = unhsz(data) if line["path"].endswith(".hsz") else data
        assert original == parts[name]
        assert line["xxh3"] == xxhash.xxh3_128_hexdigest(original)
    files = sorted(str(path.relative_to(dataset)) for path in dataset.rglob("*") if path.is_file())
    assert [name for name in files if not name.startswith("manifest/")] == sorted(
        line["path"] for line in lines.values()
    )


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["default", "none"])
def test_sigkill_at_random_moments_under_load(tmp_path: Path, codec: str) -> None:
    src, dst = tmp_path / "scratch", tmp_path / "data"
    register(src, RUN, "set")
    dice, parts, done = random.Random(codec), dict[str, bytes](), threading.Event()

    def produce() -> None:
        row = 0
        while not done.is_set():
            for start, stop in ((0, 40), (40, 64)):
                path = drop_part(src, rid(row), start, stop, 64, seed=row * 2 + (start > 0), hidden=128)
                parts[path.name] = make_part(rid(row), start, stop, 64, seed=row * 2 + (start > 0), hidden=128)
            row += 1
            time.sleep(0.0005 * KILLS)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for _ in range(KILLS):
            with mover_process(src, dst, "--codec", codec) as process:
                time.sleep(dice.uniform(0.15, 1.2))
                process.kill()
                process.wait()
    finally:
        done.set()
        producer.join()
    move_once(src, dst, codec=codec)
    assert len(parts) > 60
    assert scratch_parts(src) == []
    check_moved(dst / "set", parts)
    check_independently(dst / "set", parts)


def test_sigterm_finishes_what_is_in_hand(tmp_path: Path) -> None:
    src, dst = tmp_path / "scratch", tmp_path / "data"
    register(src, RUN, "set")
    parts = {}
    for row in range(40):
        path = drop_part(src, rid(row), 0, 32, 32, seed=row, hidden=128)
        parts[path.name] = path.read_bytes()
    with mover_process(src, dst, "--limit-rate", "100k", "--threads", "2"):
        wait_for(lambda: len(scratch_parts(src)) < 40)
    left = scratch_parts(src)
    assert 0 < len(left) < 40
    assert sorted([*left, *lines_of(dst / "set")]) == sorted(parts)
    assert not list(dst.rglob("*.tmp"))
    move_once(src, dst)
    check_moved(dst / "set", parts)
