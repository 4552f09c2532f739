"""``safetensors``: a safetensors file a sample, with the reader's own names and shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file

from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit, grouped

__all__ = ["PlainSafetensors", "read_safetensors_ids"]


class PlainSafetensors(PerSample):
    """Slots as in the dataset; the file's one metadata entry ``hs`` is JSON with sample id and boundaries."""

    def describe(self) -> dict[str, Any]:
        """Keys and shapes."""
        return {
            "tensors": {"input_ids": "int64 [n]", "loss_mask": "int64 [n]", "hidden_states": "[n, k+1, H]"},
            "last_state": "post_norm",
        }

    def units(self) -> list[Unit]:
        """A file a sample."""
        return grouped(self.job.samples, "samples/{folder}/{index}.safetensors")

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample."""
        tensors = {
            "input_ids": sample.input_ids,
            "loss_mask": sample.loss_mask,
            "hidden_states": sample.states.contiguous(),
        }
        # One entry: with several their order in the file would be left to chance.
        about = {"sample_id": sample.planned.sample_id, "boundaries": self.job.info.boundaries}
        save_file(tensors, str(path), metadata={"hs": json.dumps(about)})
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_safetensors_ids(path, "input_ids")

    def finish(self, finished: Finished) -> None:
        """``vocab_mapping.safetensors``, if one was asked for."""
        if finished.vocabulary is not None:
            save_file(finished.vocabulary.tensors(), str(self.job.out / "vocab_mapping.safetensors"))

    def command(self) -> list[str]:
        """No trainer is named."""
        return ["# safetensors.torch.load_file(path) of each file that hs-samples.jsonl names"]


def read_safetensors_ids(path: Path, key: str) -> Ids:
    """The int64 tensor `key` of a safetensors file; nothing else of it is read."""
    with safe_open(str(path), framework="np") as tensors:
        ids: Ids = tensors.get_tensor(key)
    return ids
