"""What one `hs-client export` was told."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hs_formats.errors import UsageError
from hs_formats.location import Location

__all__ = ["ALGORITHMS", "DTYPES", "FORMATS", "ExportSettings", "Serving", "default_jobs", "parse_serving"]

FORMATS = ("specforge", "speculators", "modelopt", "angelslim", "deepspec", "pt", "safetensors")
"""What ``--format`` takes; each is a module of this package."""

ALGORITHMS = ("eagle3", "dflash", "dspark")
"""What ``--algorithm`` takes: the kind of draft model, where a trainer's files depend on it."""

DTYPES = ("bfloat16", "float16", "float32")
"""What ``--dtype`` takes, besides the short names."""

_ENGINES = ("sglang", "vllm")
_SERVING = re.compile(r"([a-z]+):([0-9]+)\.([0-9]+)\.([0-9]+)([0-9A-Za-z.+-]*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine that will serve the draft model, and its version."""

    engine: str
    version: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.engine} {'.'.join(map(str, self.version))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Settings of one export.

    `model` and `serving` are None where they are to be taken from the dataset. `draft_vocab_size` 0 makes no
    vocabulary map. `fp8` is for speculators alone.
    """

    dataset: Location
    out: Path
    format: str
    dtype: str = "bfloat16"
    algorithm: str = "eagle3"
    model: str | None = None
    draft_vocab_size: int = 0
    draft_config: Path | None = None
    serving: Serving | None = None
    fp8: bool = False
    unverified: bool = False
    shard_bytes: int = 4 << 30
    jobs: int = 2
    progress_interval_s: float = 10.0


def default_jobs() -> int:
    """Samples in work at a time: the cores of this process, four at most; each job holds a few copies of a sample."""
    return min(4, len(os.sched_getaffinity(0)))


def parse_serving(text: str) -> Serving:
    """``sglang:0.5.20`` or ``vllm:0.12.0``.

    Raises:
        UsageError: it is not that.
    """
    match = _SERVING.fullmatch(text)
    if match is None or match[1] not in _ENGINES:
        raise UsageError(f"--serve {text}: give engine and version, such as sglang:0.5.20 or vllm:0.12.0")
    return Serving(match[1], (int(match[2]), int(match[3]), int(match[4])))
