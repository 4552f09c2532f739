"""The same samples as a dataset of each codec, as plain ``.pt`` files and as ``.ckpt.gz`` files."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.codec.measure import drawn
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.hashing import ids_bytes, ids_xxh3, xxh3_hex
from hs_formats.jsonl import AppendLog
from hs_formats.layout import part_layout
from hs_formats.ledger import Done, Intent, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.part import PartMeta, inspect_part, part_pieces
from hs_formats.stored import CODECS

__all__ = ["RUN", "make_samples", "write_dataset", "write_gz", "write_pt"]

RUN = "be9c0001"

GZIP_LEVEL = 6


def make_samples(folder: Path, count: int, shape: tuple[int, int, int]) -> list[torch.Tensor]:
    """`count` different bfloat16 tensors of `shape` [n, k+1, H], drawn after the real states in `folder`."""
    words = [
        torch.load(path, weights_only=True).view(torch.int16).numpy().view(np.uint16)
        for path in sorted(folder.glob("*_bfloat16.pt"))
    ]
    base = torch.from_numpy(drawn(words, shape).view(np.int16)).view(torch.bfloat16)
    return [base.roll(at, 0) for at in range(count)]


def _ids(at: int, n: int) -> list[int]:
    return [(at * 7919 + t * 31) % 32_000 for t in range(n)]


def write_dataset(root: Path, samples: Sequence[torch.Tensor], codec: str) -> int:
    """A dataset of done samples ``0``, ``1``, …, one part each; returns the bytes of its payload."""
    n, slots, hidden = samples[0].shape
    boundaries = list(range(1, slots))
    paths = DatasetPaths(root)
    paths.create()
    paths.write_info(
        DatasetInfo(
            model="drawn", config_hash="", num_layers=slots, boundaries=boundaries, dtype="bfloat16",
            hidden_size=hidden, tokenizer="", tokenizer_hash="", template_hash="",
        )
    )  # fmt: skip
    manifest: list[ManifestLine] = []
    ledger: list[Any] = [RunStarted(run=RUN, started_at="", inputs=[], servers=[], version="")]
    for at, states in enumerate(samples):
        name = PartName(Rid(RUN, at, 0), 0, n, n, 0)
        meta = PartMeta(
            rid=str(name.rid), start=0, stop=n, n=n, boundaries=boundaries, dtype="bfloat16", hidden_size=hidden,
            model="drawn", config_hash="", tp_rank=0, tp_size=1, attn_tp_rank=0, attn_tp_size=1, dp_rank=0, dp_size=1,
            writers="first", expected_ranks=[0], sglang_version="", capture_mode="plugin", nonce="0" * 16,
        )  # fmt: skip
        rows = states.view(torch.int16).numpy().tobytes()
        ids = _ids(at, n)
        data = b"".join(part_pieces(meta, input_ids=ids_bytes(ids), hidden_states=[rows]))
        layout = part_layout(inspect_part(io.BytesIO(data), name), len(data))
        pieces = (data[start : start + count] for start, count, _ in layout.pieces())
        path = paths.stored_name(name, CODECS[codec].suffix)
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"".join(CODECS[codec].encode(pieces, len(data), layout=layout)))
        manifest.append(
            ManifestLine(
                part=str(name), status="stored", path=path, raw_bytes=len(data), stored_bytes=file.stat().st_size,
                codec=codec, xxh3=xxh3_hex([data]), rows_xxh3=xxh3_hex([rows]), ids_xxh3=ids_xxh3(ids),
                expected_ranks=[0],
            )
        )  # fmt: skip
        ledger.append(Intent(sample_id=str(at), rid=str(name.rid), n=n, ids_xxh3=ids_xxh3(ids), mask=[(0, n)]))
        ledger.append(Done(sample_id=str(at), rid=str(name.rid)))
    with AppendLog(paths.manifest_file("bench")) as log:
        log.append(manifest)
    with AppendLog(paths.ledger_file(RUN)) as log:
        log.append(ledger)
    return sum(line.stored_bytes for line in manifest)


def _plain(at: int, states: torch.Tensor) -> dict[str, torch.Tensor]:
    n = len(states)
    mask = torch.ones(n, dtype=torch.int64)
    return {"input_ids": torch.tensor(_ids(at, n)), "loss_mask": mask, "hidden_states": states.clone()}


def write_pt(root: Path, samples: Sequence[torch.Tensor]) -> int:
    """``<at>.pt``, what torch.save makes; returns the bytes."""
    root.mkdir()
    for at, states in enumerate(samples):
        torch.save(_plain(at, states), root / f"{at}.pt")
    return sum(path.stat().st_size for path in root.iterdir())


def write_gz(root: Path, samples: Sequence[torch.Tensor]) -> int:
    """``<at>.ckpt.gz`` with the keys and shapes of SpecForge's offline data; returns the bytes."""
    root.mkdir()
    for at, states in enumerate(samples):
        sample = _plain(at, states)
        del sample["hidden_states"]
        sample["aux_hidden_state"] = states[None, :, :-1].flatten(2).clone()
        sample["hidden_state"] = states[None, :, -1].clone()
        buffer = io.BytesIO()
        torch.save(sample, buffer)
        (root / f"{at}.ckpt.gz").write_bytes(gzip.compress(buffer.getvalue(), GZIP_LEVEL))
    return sum(path.stat().st_size for path in root.iterdir())
