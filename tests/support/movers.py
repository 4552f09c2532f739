"""Running hs-mover in tests, in this process or as a command, and checking what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hs_formats.control import ControlFolder, MoverState
from hs_formats.dataset import DatasetPaths
from hs_formats.location import Location
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.stored import read_stored, stored_codec
from hs_mover.config import MoverConfig
from hs_mover.daemon import run_mover
from hs_mover.destination import Destination
from hs_mover.lane import Lane
from hs_mover.shared import share
from parts import drop_part
from unhsz import unhsz

__all__ = [
    "MOVER",
    "RUN",
    "check_moved",
    "drop",
    "holding",
    "lines_of",
    "move_once",
    "mover_process",
    "mover_thread",
    "moving",
    "raw_lines",
    "rid",
    "scratch_parts",
    "state_of",
    "wait_for",
]

MOVER = [sys.executable, "-c", "from hs_mover.cli import main; main()"]


def move_once(src: Path | list[Path], dst: Location, **changes: Any) -> None:
    """``hs-mover --once`` in this process."""
    sources = tuple(src) if isinstance(src, list) else (src,)
    run_mover(replace(MoverConfig(sources=sources, dst=dst, codec="default", once=True, threads=2), **changes))


@contextlib.contextmanager
def mover_thread(src: Path, dst: Path, **changes: Any) -> Iterator[Lane]:
    """A mover that runs on in threads of this process, so that the test can reach into it."""
    config = replace(MoverConfig(sources=(src,), dst=dst, codec="default", threads=2), **changes)
    dst.mkdir(exist_ok=True)
    with share(config) as shared:
        lane = Lane(src, config, Destination(dst), shared)
        lane.start()
        try:
            yield lane
        finally:
            lane.request_stop()
            wait_for(lambda: lane.join(0.1))
    if lane.error is not None:
        raise lane.error


@contextlib.contextmanager
def mover_process(src: Path, dst: Path, *options: str, log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A running ``hs-mover``; ended with SIGTERM, which must exit 0, unless the test has ended it."""
    stderr: Any = subprocess.DEVNULL if log is None else log.open("ab")
    process = subprocess.Popen([*MOVER, "--src", str(src), "--dst", str(dst), *options], stderr=stderr)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if log is not None:
            stderr.close()


def wait_for(condition: Callable[[], Any], *, timeout_s: float = 20.0, what: str = "") -> None:
    """Poll until `condition` holds; fail after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s in vain {what}"
        time.sleep(0.02)


def state_of(src: Path) -> MoverState | None:
    """``mover.json``."""
    return ControlFolder(src).read_mover()


def scratch_parts(src: Path) -> list[str]:
    """Names in scratch apart from the control folder."""
    return sorted(path.name for path in src.iterdir() if path.name != ".hs")


def raw_lines(dataset: Path) -> list[dict[str, Any]]:
    """All manifest lines, repeated ones too."""
    return [
        json.loads(line)
        for path in sorted((dataset / "manifest").glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
        if line.strip()
    ]


def lines_of(dataset: Path) -> dict[str, ManifestLine]:
    """Manifest lines by part, as readers see them."""
    return {line.part: line for line in ManifestReader(dataset / "manifest").poll()}


def check_moved(dataset: Path, parts: Mapping[str, bytes]) -> None:
    """Exactly `parts` are stored in `dataset`, each once, byte for byte, and nothing half-written lies about."""
    all_lines = raw_lines(dataset)
    first: dict[str, dict[str, Any]] = {}
    for line in all_lines:  # a part may have two lines, by two movers or after a crash; they must agree
        known = first.setdefault(line["part"], line)
        assert (line["status"], line["xxh3"], line["path"]) == (known["status"], known["xxh3"], known["path"])
    lines = list(first.values())
    assert sorted(line["part"] for line in lines) == sorted(parts)
    paths = DatasetPaths(dataset)
    for line in lines:
        assert line["status"] == "stored", line
        stored = paths.stored_file(line["path"])
        assert read_stored(stored) == parts[line["part"]]
        if stored.suffix == ".hsz":
            assert unhsz(stored.read_bytes()) == parts[line["part"]]
        assert stored_codec(stored) == line["codec"]
        assert stored.stat().st_size == line["stored_bytes"]
        assert line["raw_bytes"] == len(parts[line["part"]])
    files = [path for path in paths.data.rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(dataset)) for path in files) == sorted(line["path"] for line in lines)
    assert not list(dataset.rglob("*.tmp"))


RUN = "00c0ffee"
"""The run of the parts that `rid` names."""


def rid(row: int) -> str:
    """The rid of a row's first attempt."""
    return f"hs-{RUN}-{row:08d}-00"


def drop(src: Path, rows: range, *, tokens: int = 64, hidden: int = 256) -> dict[str, bytes]:
    """Parts of about 200 KB that hardly compress, one a row; their bytes by file name."""
    found = {}
    for row in rows:
        path = drop_part(src, rid(row), 0, tokens, tokens, seed=row, hidden=hidden)
        found[path.name] = path.read_bytes()
    return found


def holding(src: Path, word: str) -> bool:
    """The mover holds the clients, for a reason with `word` in it."""
    state = state_of(src)
    return state is not None and state.state == "holding" and word in state.reason


def moving(src: Path) -> bool:
    """The mover does its work."""
    state = state_of(src)
    return state is not None and state.state == "moving"
