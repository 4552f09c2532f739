"""Part files for tests: made with the capture's own layout code, from random states that pass the mover's checks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.control import ControlFolder, RunState
from hs_formats.hashing import ids_bytes
from hs_formats.names import PartName, Rid, temporary_name
from hs_formats.part import part_pieces
from hs_formats.tiling import Writers
from markers import make_meta

__all__ = ["NONCE", "drop_part", "make_part", "part_name", "random_states", "register"]

NONCE = "0123456789abcdef"

_BITS = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}


def part_name(rid: str, start: int, stop: int, n: int, *, rank: int = 0) -> str:
    """File name of a part."""
    return str(PartName(Rid.parse(rid), start, stop, n, rank))


def random_states(shape: Sequence[int], dtype: str, *, seed: int) -> npt.NDArray[Any]:
    """Gaussian values; bfloat16 as its bit pattern in uint16."""
    values = np.random.default_rng(seed).standard_normal(tuple(shape)).astype("<f4")
    if dtype == "bfloat16":
        return (values.view("<u4") >> 16).astype("<u2")
    return values.astype(_BITS[dtype])


def make_part(
    rid: str,
    start: int,
    stop: int,
    n: int,
    *,
    rank: int = 0,
    boundaries: Sequence[int] = (1, 2),
    hidden: int = 8,
    dtype: str = "float32",
    writers: Writers = "first",
    expected_ranks: Sequence[int] = (0,),
    seed: int = 0,
    states: npt.NDArray[Any] | None = None,
    ids: Sequence[int] | None = None,
    nonce: str = NONCE,
    config_hash: str = "0" * 16,
) -> bytes:
    """Bytes of the part [start, stop) of a prompt of n tokens.

    Args:
        states: [stop - start, k + 1, hidden] in the dtype's bits (`random_states`); random from `seed` when missing.
        ids: stop - start token ids; start, start + 1, ... when missing.
    """
    rows = stop - start
    if states is None:
        states = random_states((rows, len(boundaries) + 1, hidden), dtype, seed=seed)
    tp_size = max(1, *(r + 1 for r in (*expected_ranks, rank)))
    meta = make_meta(
        rid=rid,
        start=start,
        stop=stop,
        n=n,
        boundaries=list(boundaries),
        dtype=dtype,
        hidden_size=hidden,
        config_hash=config_hash,
        tp_rank=rank,
        tp_size=tp_size,
        attn_tp_rank=rank,
        attn_tp_size=tp_size,
        writers=writers,
        expected_ranks=list(expected_ranks),
        nonce=nonce,
    )
    token_ids = ids_bytes(list(range(start, stop)) if ids is None else ids)
    pieces = part_pieces(meta, input_ids=token_ids, hidden_states=[np.ascontiguousarray(states).tobytes()])
    return b"".join(pieces)


def drop_part(
    scratch: Path, rid: str, start: int, stop: int, n: int, *, rank: int = 0, data: bytes | None = None, **fields: Any
) -> Path:
    """Write a part into `scratch` as the capture does, by rename; returns its path.

    Args:
        data: the file's bytes when they are not to be those of `make_part(..., **fields)`.
    """
    content = make_part(rid, start, stop, n, rank=rank, **fields) if data is None else data
    name = PartName(Rid.parse(rid), start, stop, n, rank)
    temporary = scratch / temporary_name(name, NONCE)
    temporary.write_bytes(content)
    final = scratch / str(name)
    return temporary.rename(final)


def register(scratch: Path, run: str, dataset: str, *, dst: str = "") -> None:
    """Do what a client does before its first request: make the control folder and say where the run's parts belong."""
    control = ControlFolder(scratch)
    control.create()
    control.register_run(RunState(run=run, dataset=dataset, pid=os.getpid(), dst=dst))
