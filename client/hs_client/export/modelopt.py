"""NVIDIA ModelOpt: ``data/**/<index>.pt``, one sample a file without a batch dimension, and ``recipe.yaml``.

ModelOpt loads every ``*.pt`` below its data folder, so nothing else of that name lies there.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import torch

from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit, grouped
from hs_client.export.torch_files import read_torch_ids, save
from hs_formats.durable import write_durable

__all__ = ["ModelOpt"]


class ModelOpt(PerSample):
    """The last state is the one after the final norm, and each file says so."""

    def describe(self) -> dict[str, Any]:
        """Keys and shapes."""
        return {
            "tensors": {
                "input_ids": "int64 [n]",
                "loss_mask": "int64 [n]",
                "aux_hidden_states": "[n, k*H]",
                "hidden_states": "[n, H]",
            },
            "last_state": "post_norm",
            "layer_ids": self.job.eagle_ids,
        }

    def units(self) -> list[Unit]:
        """A file a sample."""
        return grouped(self.job.samples, "data/{folder}/{index}.pt")

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample."""
        save(
            path,
            {
                "conversation_id": sample.planned.sample_id,
                "input_ids": sample.input_ids,
                "loss_mask": sample.loss_mask,
                "hidden_states": sample.last,
                "aux_hidden_states": sample.aux,
                "hidden_states_prenorm": False,
            },
        )
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_torch_ids(path)

    def finish(self, finished: Finished) -> None:
        """``d2t.pt``, outside of the data folder, and a recipe."""
        job = self.job
        architecture: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": job.eagle_ids}
        data: dict[str, Any] = {"offline_data_path": str(job.out / "data")}
        if finished.vocabulary is not None:
            save(job.out / "d2t.pt", torch.from_numpy(finished.vocabulary.d2t))
            data["draft_vocab_cache"] = str(job.out / "d2t.pt")
            architecture["draft_vocab_size"] = len(finished.vocabulary.d2t)
        recipe = {
            "metadata": {"recipe_type": "speculative_eagle"},
            "model": {"model_name_or_path": job.model.path},
            "data": data,
            # Without answer_only_loss ModelOpt trains on every token, whatever the mask says.
            "training": {"training_seq_len": job.longest, "answer_only_loss": True},
            "eagle": {"eagle_architecture_config": architecture},
        }
        write_durable(job.out / "recipe.yaml", json.dumps(recipe, indent=1).encode() + b"\n")

    def command(self) -> list[str]:
        """The example script of the Model-Optimizer repository; the recipe is JSON, which YAML contains."""
        recipe = shlex.quote(str(self.job.out / "recipe.yaml"))
        return [f"python examples/speculative_decoding/main.py --config {recipe} training.output_dir=OUTPUT"]
