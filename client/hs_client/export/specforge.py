"""SpecForge 0.2 offline: ``hidden_states/**/<index>.ckpt``, one sample a file, and ``train.json`` to train with.

All tensors but the ids and the mask have a batch dimension of 1. Row t belongs to token t: SpecForge shifts by itself.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from hs_client.export.errors import WrongChoice
from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit, grouped
from hs_client.export.settings import ALGORITHMS
from hs_client.export.torch_files import read_torch_ids, save
from hs_formats.durable import write_durable

__all__ = ["SpecForge"]

_DERIVED_DRAFT_VOCAB = 32000


class SpecForge(PerSample):
    """The last state is the one after the final norm. Other dtypes load, and fail in the train step."""

    algorithms = ALGORITHMS
    dtypes = ("bfloat16",)

    def check(self) -> None:
        """EAGLE-3 takes three boundaries, no other number."""
        super().check()
        if self.job.settings.algorithm == "eagle3" and len(self.job.info.boundaries) != 3:
            raise WrongChoice(
                format="specforge",
                reason=f"its EAGLE-3 takes three boundaries, and this dataset has {self.job.info.boundaries}",
            )

    def describe(self) -> dict[str, Any]:
        """Keys and shapes by algorithm."""
        aux, last = "[1, n, k*H]", "[1, n, H]"
        states = {
            "eagle3": {"aux_hidden_state": aux, "hidden_state": last},
            "dflash": {"hidden_states": aux},
            "dspark": {"hidden_states": aux, "target_last_hidden_states": last},
        }[self.job.settings.algorithm]
        return {
            "tensors": {"input_ids": "int64 [n]", "loss_mask": "int64 [n]", **states},
            "last_state": "post_norm",
            "layer_ids": self.job.eagle_ids,
        }

    def units(self) -> list[Unit]:
        """A file a sample; SpecForge sorts them by path."""
        return grouped(self.job.samples, "hidden_states/{folder}/{index}.ckpt")

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample."""
        content = {"input_ids": sample.input_ids, "loss_mask": sample.loss_mask}
        if self.job.settings.algorithm == "eagle3":
            content |= {"aux_hidden_state": sample.aux[None], "hidden_state": sample.last[None]}
        else:
            content["hidden_states"] = sample.aux[None]
            if self.job.settings.algorithm == "dspark":
                content["target_last_hidden_states"] = sample.last[None]
        save(path, content)
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_torch_ids(path)

    def finish(self, finished: Finished) -> None:
        """The vocabulary map and a run config that names everything."""
        job = self.job
        model: dict[str, Any] = {"target_model_path": job.model.path}
        if finished.vocabulary is not None:
            save(job.out / "vocab_mapping.pt", finished.vocabulary.tensors())
            model["vocab_mapping_path"] = str(job.out / "vocab_mapping.pt")
        if job.settings.draft_config is not None:
            model["draft_model_config"] = str(job.out / "draft_config.json")
        run = {
            "model": model,
            "data": {"hidden_states_path": str(job.out / "hidden_states"), "max_length": job.longest},
            "training": {"strategy": job.settings.algorithm},
        }
        write_durable(job.out / "train.json", json.dumps(run, indent=1).encode() + b"\n")

    def command(self) -> list[str]:
        """Run it with the config written beside the data."""
        lines = [f"specforge train --config {shlex.quote(str(self.job.out / 'train.json'))}"]
        size = self.job.settings.draft_vocab_size
        if size not in (0, _DERIVED_DRAFT_VOCAB) and self.job.settings.draft_config is None:
            lines.append(
                f"# the draft config that SpecForge derives has {_DERIVED_DRAFT_VOCAB} tokens: name one with"
                f" draft_vocab_size {size} as --draft-config"
            )
        if self.job.settings.algorithm != "eagle3" and self.job.settings.draft_config is None:
            lines.append("# add model.draft_model_config=FILE: a config completed with the keys of draft_config.json")
        return lines
