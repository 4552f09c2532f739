"""What a mover is told: its folders, codec, marks and rates, and how sizes and its own name are spelled."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path

from hs_formats.errors import UsageError
from hs_formats.location import Location
from hs_mover.ladder import LADDER

__all__ = ["METRICS_HOST", "MoverConfig", "default_threads", "mover_id", "parse_size"]

METRICS_HOST = "127.0.0.1"

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?b?)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverConfig:
    """Settings of one mover process. `reserve_bytes` None means the default of the folder's file system,
    `metrics_port` None serves no metrics; `view` draws on the terminal.

    Raises:
        UsageError: the marks are not 0 < low < high <= 1, the rate is 0, or the floor has no place on the ladder.
    """

    sources: tuple[Path, ...]
    dst: Location
    codec: str
    codec_floor: str = "fast"
    high: float = 0.80
    low: float = 0.60
    reserve_bytes: int | None = None
    limit_bytes_per_s: int | None = None
    once: bool = False
    threads: int = 2
    metrics_port: int | None = None
    view: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high <= 1:
            raise UsageError(f"--low {self.low:g} and --high {self.high:g}: fractions of scratch, 0 < low < high <= 1")
        if self.codec_floor not in LADDER:
            raise UsageError(f"--codec-floor {self.codec_floor}: one of {', '.join(LADDER)}")
        if self.limit_bytes_per_s is not None and self.limit_bytes_per_s < 1:
            raise UsageError("--limit-rate 0 would move nothing; leave it out for no limit")


def parse_size(text: str) -> int:
    """Bytes of ``64M``, ``1GiB``, ``1.5G``, ``500kB`` or a plain number.

    K, M, G, T and KiB, MiB … count in 1024, kB, MB … in 1000.

    Raises:
        UsageError: `text` is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2] and match[3].lower() != "b"):
        raise UsageError(f"{text!r} is not a size such as 64M, 1GiB, 500MB or 1048576")
    base = 1000 if match[2] and match[3].lower() == "b" else 1024
    return int(float(match[1]) * base ** _UNITS[match[2].lower()])


def default_threads(dst: Location) -> int:
    """Worker threads: the cores this process may use, 16 at most, two at least so that one may wait for the disk, and
    eight for an object store, which every one of them waits for."""
    least = 2 if isinstance(dst, Path) else 8
    return max(least, min(16, len(os.sched_getaffinity(0))))


def mover_id(src: Path, *, host: str | None = None) -> str:
    """The name of the mover of `src` on this host, the same after every restart and safe inside a file name."""
    name = re.sub(r"[^A-Za-z0-9-]+", "-", host if host is not None else socket.gethostname()).strip("-")[:40] or "host"
    return f"{name}-{hashlib.sha256(os.fsencode(src.absolute())).hexdigest()[:8]}"
