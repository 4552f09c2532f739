"""What is known about a destination before a run: free space, and how well and how fast it went so far."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hs_client.budget import Room
from hs_client.history import History
from hs_formats.control import MoverState
from hs_formats.dataset import DatasetPaths
from hs_formats.jsonl import UNREADABLE
from hs_formats.manifest import ManifestLine
from hs_formats.regular import open_regular

__all__ = ["measure_room", "stored_ratio"]

_TAIL_BYTES = 1 << 20
_MIN_RATE_S = 60.0


def measure_room(paths: DatasetPaths, mover: MoverState, history: History) -> Room:
    """Space at the destination, and what earlier runs of the dataset tell."""
    free_bytes = free_files = None
    try:
        if not paths.local:
            raise OSError("an object store does not fill")
        found = os.statvfs(paths.root if paths.root.is_dir() else paths.root.parent)
    except OSError:
        pass
    else:
        free_bytes = found.f_bavail * found.f_frsize
        free_files = found.f_favail if found.f_files else None
    return Room(
        free_bytes=free_bytes,
        free_files=free_files,
        scratch_bytes=mover.limit_bytes,
        codec=mover.codec,
        ratio=stored_ratio(paths),
        tokens_per_s=_latest_rate(history),
    )


def _latest_rate(history: History) -> float:
    long_enough = [rate for rate in history.rates if rate.spent_s >= _MIN_RATE_S and rate.tokens]
    if not long_enough:
        return 0.0
    latest = max(long_enough, key=lambda rate: rate.started_s)
    return latest.tokens / latest.spent_s


def stored_ratio(paths: DatasetPaths) -> float:
    """Raw to stored bytes of the parts that were stored last, 0 where nothing is."""
    raw = stored = 0
    for path in paths.manifest.glob("*.jsonl"):
        for line in _last_lines(path):
            if line.status == "stored":
                raw += line.raw_bytes
                stored += line.stored_bytes
    return raw / stored if stored else 0.0


def _last_lines(path: Path) -> Iterator[ManifestLine]:
    decoder = msgspec.json.Decoder(ManifestLine)
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines[0 if size <= _TAIL_BYTES else 1 : -1]:
        try:
            found = decoder.decode(line)
        except UNREADABLE:
            continue
        yield found
