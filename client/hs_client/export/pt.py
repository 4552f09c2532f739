"""``pt``: a plain ``torch.save`` file a sample, with the reader's own names and shapes, for trainers of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit, grouped
from hs_client.export.torch_files import read_torch_ids, save

__all__ = ["PlainPt"]


class PlainPt(PerSample):
    """Slots as in the dataset: the boundaries ascending, then the state after the final norm."""

    def describe(self) -> dict[str, Any]:
        """Keys and shapes."""
        return {
            "tensors": {"input_ids": "int64 [n]", "loss_mask": "int64 [n]", "hidden_states": "[n, k+1, H]"},
            "last_state": "post_norm",
        }

    def units(self) -> list[Unit]:
        """A file a sample."""
        return grouped(self.job.samples, "samples/{folder}/{index}.pt")

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample."""
        save(
            path,
            {
                "sample_id": sample.planned.sample_id,
                "boundaries": list(self.job.info.boundaries),
                "input_ids": sample.input_ids,
                "loss_mask": sample.loss_mask,
                "hidden_states": sample.states,
            },
        )
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_torch_ids(path)

    def finish(self, finished: Finished) -> None:
        """``vocab_mapping.pt``, if one was asked for."""
        if finished.vocabulary is not None:
            save(self.job.out / "vocab_mapping.pt", finished.vocabulary.tensors())

    def command(self) -> list[str]:
        """No trainer is named."""
        return ["# torch.load(path, weights_only=True, mmap=True) of each file that hs-samples.jsonl names"]
