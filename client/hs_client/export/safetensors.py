"""``safetensors``: a safetensors file a sample, with the reader's own names and shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit, grouped
from hs_client.export.safetensors_files import read_safetensors_ids, save_tensors

__all__ = ["PlainSafetensors"]


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
        about = {"sample_id": sample.planned.sample_id, "boundaries": self.job.info.boundaries}
        save_tensors(path, tensors, {"hs": json.dumps(about)})
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_safetensors_ids(path, "input_ids")

    def finish(self, finished: Finished) -> None:
        """``vocab_mapping.safetensors``, if one was asked for."""
        if finished.vocabulary is not None:
            save_tensors(self.job.out / "vocab_mapping.safetensors", finished.vocabulary.tensors())

    def command(self) -> list[str]:
        """No trainer is named."""
        return ["# safetensors.torch.load_file(path) of each file that hs-samples.jsonl names"]
