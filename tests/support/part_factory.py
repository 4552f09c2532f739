"""Parts and datasets made by hand, without a server, a mover or a client."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.durable import make_folders
from hs_formats.hashing import ids_xxh3, xxh3_hex
from hs_formats.jsonl import AppendLog
from hs_formats.layout import part_layout
from hs_formats.ledger import Done, Intent, LedgerLine, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.part import PartMeta, inspect_part, part_pieces
from hs_formats.stored import CODECS
from hs_formats.tiling import Writers
from markers import make_meta

__all__ = ["Record", "dataset_info", "part_bytes", "part_meta", "random_record", "tensor_bytes", "write_dataset"]

STARTED_AT = "2026-01-02T03:04:05Z"


def part_meta(name: PartName, *, boundaries: Sequence[int] = (1, 2), **changes: Any) -> PartMeta:
    """A meta that fits `name`; `changes` replace fields."""
    fits = {"rid": str(name.rid), "start": name.start, "stop": name.stop, "n": name.n}
    known = {"boundaries": list(boundaries), "hidden_size": 4, "tp_rank": name.rank, "attn_tp_rank": name.rank}
    return make_meta(**(fits | known | changes))


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Row-major bytes of a CPU tensor of any dtype."""
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) if tensor.numel() else b""


def part_bytes(
    name: PartName, ids: Sequence[int], states: torch.Tensor, *, boundaries: Sequence[int] = (1, 2), **changes: Any
) -> bytes:
    """The file of part `name`: `ids` [m] and `states` [m, k+1, H] are those of its rows."""
    meta = part_meta(
        name,
        boundaries=boundaries,
        dtype=str(states.dtype).removeprefix("torch."),
        hidden_size=states.shape[2],
        **changes,
    )
    pieces = part_pieces(meta, input_ids=np.asarray(ids, dtype="<i8").tobytes(), hidden_states=[tensor_bytes(states)])
    return b"".join(pieces)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One done sample: ids [n], states [n, k+1, H], and where its parts are cut."""

    sample_id: str
    rid: Rid
    ids: Sequence[int]
    states: torch.Tensor
    cuts: Sequence[int] = ()
    mask: Sequence[tuple[int, int]] = ((0, 1),)

    @property
    def names(self) -> list[PartName]:
        """Its parts, ascending."""
        edges = [0, *self.cuts, len(self.ids)]
        return [PartName(self.rid, a, b, len(self.ids), 0) for a, b in itertools.pairwise(edges)]


def random_record(row: int, n: int, *, run: str = "0000abcd", cuts: Sequence[int] = (), **changes: Any) -> Record:
    """A record of n tokens, 3 slots, H = 4, float32; the same for the same row."""
    generator = torch.Generator().manual_seed(row)
    states = torch.randn(n, 3, 4, generator=generator)
    ids = torch.randint(0, 512, (n,), generator=generator).tolist()
    record = Record(sample_id=f"s{row}", rid=Rid(run, row, 0), ids=ids, states=states, cuts=cuts)
    return replace(record, **changes)


def dataset_info(**changes: Any) -> DatasetInfo:
    """What `random_record` fits into."""
    info = DatasetInfo(
        model="/models/tiny",
        config_hash="c0ffee",
        num_layers=4,
        boundaries=[1, 2],
        dtype="float32",
        hidden_size=4,
        tokenizer="/models/tiny",
        tokenizer_hash="beef",
        template_hash="feed",
    )
    return replace(info, **changes)


def write_dataset(
    root: Path,
    records: Sequence[Record],
    *,
    codec: str = "default",
    info: DatasetInfo | None = None,
    writers: Writers = "first",
    expected_ranks: Sequence[int] = (0,),
) -> DatasetPaths:
    """A dataset of `records`, each in its run's ledger, all in one manifest, intents in order and dones backwards.

    All parts are rank 0's, whatever other ranks are expected.
    """
    ranks = {"writers": writers, "expected_ranks": list(expected_ranks)}
    paths = DatasetPaths(root)
    paths.create()
    info = info or dataset_info()
    paths.write_info(info)
    lines: list[ManifestLine] = []
    ledgers: Mapping[str, list[LedgerLine]] = {record.rid.run: [] for record in records}
    for record in records:
        for name in record.names:
            part = slice(name.start, name.stop)
            data = part_bytes(name, record.ids[part], record.states[part], boundaries=info.boundaries, **ranks)
            relative = paths.stored_name(name, CODECS[codec].suffix)
            layout = part_layout(inspect_part(io.BytesIO(data), name), len(data))
            stored = b"".join(CODECS[codec].encode([data], len(data), layout=layout))
            make_folders((root / relative).parent)
            (root / relative).write_bytes(stored)
            lines.append(
                ManifestLine(
                    part=str(name),
                    status="stored",
                    path=relative,
                    raw_bytes=len(data),
                    stored_bytes=len(stored),
                    codec=codec,
                    xxh3=xxh3_hex([data]),
                    rows_xxh3=xxh3_hex([tensor_bytes(record.states[part])]),
                    ids_xxh3=ids_xxh3(record.ids[part]),
                    writers=writers,
                    expected_ranks=list(expected_ranks),
                )
            )
        ledgers[record.rid.run].append(
            Intent(
                sample_id=record.sample_id,
                rid=str(record.rid),
                n=len(record.ids),
                ids_xxh3=ids_xxh3(record.ids),
                mask=list(record.mask),
            )
        )
    for record in reversed(records):
        ledgers[record.rid.run].append(Done(sample_id=record.sample_id, rid=str(record.rid)))
    with AppendLog(paths.manifest_file("host-src")) as manifest:
        manifest.append(lines)
    for run, run_lines in ledgers.items():
        with AppendLog(paths.ledger_file(run)) as ledger:
            ledger.append([RunStarted(run=run, started_at=STARTED_AT, inputs=["p.jsonl"], servers=[], version="0")])
            ledger.append(run_lines)
    return paths
