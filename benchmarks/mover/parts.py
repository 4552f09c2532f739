"""Part files for the benchmarks of the mover: real states (tests/samples) in parts of any size."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.checkout import ROOT
from hs_formats.control import ControlFolder, RunState
from hs_formats.errors import PreflightError
from hs_formats.hashing import ids_bytes
from hs_formats.part import PartMeta, part_pieces

__all__ = ["RUN", "States", "part_of", "register", "rows_for"]

RUN = "0be0c4a0"
_SAMPLES = ("L02", "L15", "L28", "final")
_BOUNDARIES = (2, 15, 28)


def _read(path: Path) -> npt.NDArray[Any]:
    """The bits of a bare ``torch.save`` file of one bfloat16 tensor [tokens, channels]."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith("/data/0")]
            return np.frombuffer(archive.read(name), "<u2")
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise PreflightError(f"{path} cannot be read ({error}): run it from a whole checkout") from error


class States:
    """Real states of four slots, dealt out in random order of tokens: no part is like another."""

    def __init__(self, *, seed: int = 0) -> None:
        slots = [
            _read(ROOT / "tests" / "samples" / f"smollm2_{name}_bfloat16.pt").reshape(-1, 576) for name in _SAMPLES
        ]
        self._rows = np.stack(slots, axis=1)
        self._dice = np.random.default_rng(seed)

    @property
    def row_bytes(self) -> int:
        """Of one token in all slots."""
        return int(self._rows[0].nbytes)

    def take(self, rows: int) -> npt.NDArray[Any]:
        """[rows, 4, 576] bit patterns."""
        blocks: list[npt.NDArray[Any]] = []
        while rows > 0:
            order = self._dice.permutation(len(self._rows))[:rows]
            blocks.append(self._rows[order])
            rows -= len(order)
        return np.concatenate(blocks)


def rows_for(states: States, size_bytes: int) -> int:
    """Tokens of a part of about that size."""
    return max(1, size_bytes // (states.row_bytes + 8))


def part_of(states: States, row: int, rows: int) -> tuple[str, Iterator[bytes]]:
    """Name and pieces of the whole record of prompt `row`."""
    rid = f"hs-{RUN}-{row:08d}-00"
    meta = PartMeta(
        rid=rid, start=0, stop=rows, n=rows, boundaries=list(_BOUNDARIES), dtype="bfloat16", hidden_size=576,
        model="SmolLM2-135M-Instruct", config_hash="0" * 16, tp_rank=0, tp_size=1, attn_tp_rank=0, attn_tp_size=1,
        dp_rank=0, dp_size=1, writers="first", expected_ranks=[0], sglang_version="none", capture_mode="plugin",
        nonce="0" * 16,
    )  # fmt: skip
    pieces = part_pieces(
        meta, input_ids=ids_bytes(list(range(rows))), hidden_states=[np.ascontiguousarray(states.take(rows)).tobytes()]
    )
    return str(meta.name), (bytes(piece) for piece in pieces)


def register(scratch: Path) -> None:
    """Make `scratch` and claim the run of these parts for the dataset ``bench``."""
    control = ControlFolder(scratch)
    control.create()
    control.register_run(RunState(run=RUN, dataset="bench", pid=1))
