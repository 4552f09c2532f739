"""DeepSpec target cache, version 2: ``cache/shard-NNNNN.bin``, ``samples.idx`` and ``manifest.json``.

A shard holds, for each sample, int32 ids, uint8 attention mask, uint8 loss mask, bf16 [n, k*H] and bf16 [n, H], one
after the other. A record of the index is ``<QIIQQQQQ``: sample, shard, n, and the byte offsets of these five.
"""

from __future__ import annotations

import json
import shlex
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hs_client.export.errors import BadSample, WrongChoice
from hs_client.export.layout import ExportSample, Finished, Format, Ids, Unit
from hs_client.export.samples import PlannedSample
from hs_client.export.settings import ALGORITHMS
from hs_formats.durable import write_durable

__all__ = ["INDEX_RECORD", "DeepSpec", "sample_offsets"]

INDEX_RECORD = struct.Struct("<QIIQQQQQ")

_MAX_SHARD_BYTES = 64 << 30
_LARGEST_ID = 2**31 - 1


def sample_offsets(n: int, slots: int, hidden_size: int) -> tuple[int, int, int, int, int, int]:
    """Byte offsets of a sample's five tensors from its beginning, and its size."""
    ids, mask = 4 * n, n
    aux = 2 * n * (slots - 1) * hidden_size
    last = 2 * n * hidden_size
    return 0, ids, ids + mask, ids + 2 * mask, ids + 2 * mask + aux, ids + 2 * mask + aux + last


class DeepSpec(Format):
    """The last state is the one after the final norm."""

    algorithms = ALGORITHMS
    dtypes = ("bfloat16",)
    maps_vocabulary = False

    def check(self) -> None:
        """Shards have a limit."""
        super().check()
        if self.job.settings.shard_bytes > _MAX_SHARD_BYTES:
            raise WrongChoice(format="deepspec", reason="its shards have 64 GiB at most; lower --shard-size")

    def describe(self) -> dict[str, Any]:
        """Tensors in their order."""
        return {
            "tensors": {
                "input_ids": "int32 [n]",
                "attention_mask": "uint8 [n]",
                "loss_mask": "uint8 [n]",
                "target_hidden_states": "[n, k*H]",
                "target_last_hidden_states": "[n, H]",
            },
            "last_state": "post_norm",
            "layer_ids": self.job.eagle_ids,
        }

    def units(self) -> list[Unit]:
        """Shards of at most ``--shard-size``, but at least one sample."""
        edges = [0]
        size = 0
        for sample in self.job.samples:
            more = self._size(sample)
            if size and size + more > self.job.settings.shard_bytes:
                edges.append(sample.index)
                size = 0
            size += more
        edges.append(len(self.job.samples))
        return [Unit(f"cache/shard-{at:05d}.bin", edges[at], edges[at + 1]) for at in range(len(edges) - 1)]

    def write(self, path: Path, samples: Iterator[ExportSample]) -> dict[str, int]:
        """One shard."""
        with path.open("wb") as file:
            for sample in samples:
                if int(sample.input_ids.max()) > _LARGEST_ID or int(sample.input_ids.min()) < 0:
                    raise BadSample(sample_id=sample.planned.sample_id, reason="a token id does not fit int32")
                file.write(sample.input_ids.to(torch.int32).numpy().data)
                file.write(b"\x01" * sample.planned.n)
                file.write(sample.loss_mask.to(torch.uint8).numpy().data)
                for states in (sample.aux, sample.last):
                    file.write(states.view(torch.int16).numpy().data)
        return {}

    def read_ids(self, path: Path, samples: Sequence[PlannedSample]) -> Iterator[Ids]:
        """From the shard, one sample after the other."""
        with path.open("rb") as file:
            at = 0
            for sample in samples:
                file.seek(at)
                yield np.frombuffer(file.read(4 * sample.n), dtype="<i4").astype(np.int64)
                at += self._size(sample)

    def finish(self, finished: Finished) -> None:
        """Index and manifest."""
        del finished
        job, units = self.job, self.units()
        index = bytearray()
        for shard, unit in enumerate(units):
            at = 0
            for sample in job.samples[unit.first : unit.stop]:
                *offsets, size = sample_offsets(sample.n, len(job.info.boundaries) + 1, job.info.hidden_size)
                index += INDEX_RECORD.pack(sample.index, shard, sample.n, *(at + offset for offset in offsets))
                at += size
        write_durable(job.out / "cache" / "samples.idx", bytes(index))
        manifest = {
            "version": 2,
            "num_samples": len(job.samples),
            "num_shards": len(units),
            "target_layer_ids": job.eagle_ids,
            "hidden_dtype": "bfloat16",
            "token_dtype": "int32",
            "mask_dtype": "uint8",
            "index_record_size": INDEX_RECORD.size,
            "hidden_size": job.info.hidden_size,
            "target_model_name_or_path": job.model.path,
            "shards": [{"shard_id": at, "file_name": Path(unit.path).name} for at, unit in enumerate(units)],
        }
        write_durable(job.out / "cache" / "manifest.json", json.dumps(manifest, indent=1).encode() + b"\n")

    def command(self) -> list[str]:
        """The script of the DeepSpec repository; its config names the draft model."""
        cache = shlex.quote(f"data.target_cache_path={self.job.out / 'cache'}")
        ids = self.job.eagle_ids
        return [
            f"python train.py --config config/CONFIG.py --opts {cache}",
            f"# that config must spell its target model {self.job.model.path!r} and have target_layer_ids {ids}",
        ]

    def _size(self, sample: PlannedSample) -> int:
        return sample_offsets(sample.n, len(self.job.info.boundaries) + 1, self.job.info.hidden_size)[-1]
