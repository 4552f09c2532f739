"""Datasets of any size, written by hand: books as a client and a mover write them, and payload where it is wanted."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.hashing import ids_bytes, ids_xxh3, xxh3_hex
from hs_formats.jsonl import AppendLog
from hs_formats.layout import part_layout
from hs_formats.ledger import Done, Intent, LedgerLine, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.part import PartMeta, inspect_part, part_pieces
from hs_formats.stored import CODECS

__all__ = ["RUN", "TOKENS", "draw_ids", "write_set"]

RUN = "5ca11ab1"
TOKENS = 24
"""Of each sample: payload is small, so that what is measured is what a sample costs, not what a byte does."""

_VOCABULARY = 4000
_SLOTS, _HIDDEN = 4, 32
_BATCH = 2000
_CODEC = "default"


def write_set(root: Path, rows: int, *, payload: bool) -> None:
    """A dataset of `rows` done samples, one part each.

    Without `payload` no file of ``data`` is written, and the checksums in the manifest are those of nothing.
    """
    paths = DatasetPaths(root)
    paths.create()
    paths.write_info(
        DatasetInfo(
            model="drawn", config_hash="", num_layers=8, boundaries=[2, 4, 5], dtype="bfloat16", hidden_size=_HIDDEN,
            tokenizer="", tokenizer_hash="", template_hash="",
        )
    )  # fmt: skip
    payloads = _Payload(paths) if payload else None
    started = RunStarted(run=RUN, started_at="2026-01-01T00:00:00.000+00:00", inputs=["p"], servers=[], version="0")
    with AppendLog(paths.manifest_file("bench-src")) as manifest, AppendLog(paths.ledger_file(RUN)) as ledger:
        ledger.append([started])
        for first in range(0, rows, _BATCH):
            samples = [_sample(paths, row, payloads) for row in range(first, min(rows, first + _BATCH))]
            manifest.append([line for line, _ in samples])
            ledger.append([line for _, lines in samples for line in lines])


def _sample(paths: DatasetPaths, row: int, payload: _Payload | None) -> tuple[ManifestLine, list[LedgerLine]]:
    name = PartName(Rid(RUN, row, 0), 0, TOKENS, TOKENS, 0)
    ids = draw_ids(row)
    hashed = ids_xxh3(ids)
    path = paths.stored_name(name, CODECS[_CODEC].suffix)
    raw_bytes, stored_bytes, whole, states = (5000, 4000, f"{row:032x}", f"{row:032x}")
    if payload is not None:
        raw_bytes, stored_bytes, whole, states = payload.write(name, ids, path)
    line = ManifestLine(
        part=str(name), status="stored", path=path, raw_bytes=raw_bytes, stored_bytes=stored_bytes, codec=_CODEC,
        xxh3=whole, rows_xxh3=states, ids_xxh3=hashed, expected_ranks=[0], stored_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    sample_id, rid = f"row-{row}", str(name.rid)
    intent = Intent(
        sample_id=sample_id, rid=rid, n=TOKENS, ids_xxh3=hashed, mask=[(8, TOKENS)], row=f"p:{row + 1}",
        content="ab" * 8,
    )  # fmt: skip
    done = Done(
        sample_id=sample_id, rid=rid, finish_reason="length", prompt_tokens=TOKENS, cached_tokens=0, content="ab" * 8
    )
    return line, [intent, done]


def draw_ids(row: int) -> list[int]:
    """Token ids of sample `row`: the first is the same for all, as where a tokenizer begins each text with its own."""
    state = (row + 1) * 0x9E37_79B9_7F4A_7C15
    found = [1]
    for _ in range(TOKENS - 1):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found.append(3 + (state >> 33) % (_VOCABULARY - 3))
    return found


class _Payload:
    """Parts whose states depend on the tokens up to theirs, and on their own most, as those of a model do."""

    def __init__(self, paths: DatasetPaths) -> None:
        self._paths = paths
        generator = np.random.default_rng(5)
        self._table = generator.standard_normal((_VOCABULARY, _SLOTS, _HIDDEN)).astype(np.float32)

    def write(self, name: PartName, ids: list[int], path: str) -> tuple[int, int, str, str]:
        """Store a part; bytes raw and stored, hash of the part's file and of its states."""
        states = self._states(ids)
        meta = PartMeta(
            rid=str(name.rid), start=0, stop=name.n, n=name.n, boundaries=[2, 4, 5], dtype="bfloat16",
            hidden_size=_HIDDEN, model="drawn", config_hash="", tp_rank=0, tp_size=1, attn_tp_rank=0, attn_tp_size=1,
            dp_rank=0, dp_size=1, writers="first", expected_ranks=[0], sglang_version="", capture_mode="plugin",
            nonce="0" * 16,
        )  # fmt: skip
        data = b"".join(part_pieces(meta, input_ids=ids_bytes(ids), hidden_states=[states]))
        layout = part_layout(inspect_part(io.BytesIO(data), name), len(data))
        stored = b"".join(CODECS[_CODEC].encode(_pieces(data, layout.pieces()), len(data), layout=layout))
        file = self._paths.root / path
        if name.rid.row % 500 == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stored)
        return len(data), len(stored), xxh3_hex([data]), xxh3_hex([states])

    def _states(self, ids: list[int]) -> bytes:
        own: npt.NDArray[np.float32] = self._table[ids]
        before = np.cumsum(own, axis=0) - own
        states = own + 0.1 * before / np.sqrt(np.arange(len(ids)) + 1)[:, None, None]
        return (states.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def _pieces(data: bytes, wanted: Any) -> Iterator[bytes]:
    return (data[start : start + count] for start, count, _ in wanted)
