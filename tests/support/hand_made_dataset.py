"""A small dataset made by hand with the writers of `hs_formats`: two samples, one of them in two parts."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.hashing import ids_xxh3, xxh3_hex
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Intent, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.part import inspect_part
from hs_formats.stored import CODECS
from parts import make_part

__all__ = ["hand_made_dataset"]

RUN = "0000abcd"
HIDDEN = 8
BOUNDARIES = [1, 2]


def hand_made_dataset(root: Path) -> Path:
    """Make it at `root`: samples `a` (5 tokens, the last 3 trained on, float32, H = 8) and `b` (3 tokens, all)."""
    paths = DatasetPaths(root)
    paths.create()
    paths.write_info(
        DatasetInfo(
            model="test-model",
            config_hash="0" * 16,
            num_layers=4,
            boundaries=BOUNDARIES,
            dtype="float32",
            hidden_size=HIDDEN,
            tokenizer="test-model",
            tokenizer_hash="0" * 16,
            template_hash="",
        )
    )
    ledger = AppendLog(paths.ledger_file(RUN))
    manifest = AppendLog(paths.manifest_file("hand"))
    ledger.append([RunStarted(run=RUN, started_at="2026-01-02T03:04:05Z", inputs=["p.jsonl"], servers=[], version="0")])
    for row, (sample_id, cuts, spans) in enumerate([("a", [0, 2, 5], [(2, 5)]), ("b", [0, 3], [(0, 3)])]):
        rid, n = Rid(RUN, row, 0), cuts[-1]
        manifest.append([_store(paths, rid, start, stop, n) for start, stop in itertools.pairwise(cuts)])
        ids_hash = ids_xxh3(list(range(n)))
        ledger.append(
            [
                Intent(sample_id=sample_id, rid=str(rid), n=n, ids_xxh3=ids_hash, mask=spans, row=f"p.jsonl:{row + 1}"),
                Done(sample_id=sample_id, rid=str(rid), finish_reason="length", prompt_tokens=n, cached_tokens=0),
            ]
        )
    ledger.close()
    manifest.close()
    return root


def _store(paths: DatasetPaths, rid: Rid, start: int, stop: int, n: int) -> ManifestLine:
    name = PartName(rid, start, stop, n, 0)
    raw = make_part(str(rid), start, stop, n, boundaries=BOUNDARIES, hidden=HIDDEN, seed=start)
    span = inspect_part(io.BytesIO(raw), name).hidden_states
    codec = CODECS["zstd"]
    path = paths.stored_name(name, codec.suffix)
    file = paths.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(codec.encode([raw], len(raw))))
    return ManifestLine(
        part=str(name),
        status="stored",
        path=path,
        raw_bytes=len(raw),
        stored_bytes=file.stat().st_size,
        codec=codec.name,
        xxh3=xxh3_hex([raw]),
        rows_xxh3=xxh3_hex([raw[span.offset : span.offset + span.spec.nbytes]]),
        ids_xxh3=ids_xxh3(list(range(start, stop))),
        expected_ranks=[0],
        stored_at="2026-01-02T03:04:05Z",
    )
