"""AngelSlim: ``data/rank_0/rows_<a>-<b>/data_<i>.ckpt``, one sample a file, all tensors with a batch dimension of 1."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from hs_client.export.errors import WrongChoice
from hs_client.export.layout import ExportSample, Finished, Ids, PerSample, Unit
from hs_client.export.torch_files import read_torch_ids, save

__all__ = ["AngelSlim"]

_ROWS_PER_FOLDER = 1000


class AngelSlim(PerSample):
    """The last state is the one after the final norm."""

    def check(self) -> None:
        """AngelSlim takes three boundaries, and does not start without a vocabulary map."""
        super().check()
        if len(self.job.info.boundaries) != 3:
            raise WrongChoice(
                format="angelslim", reason=f"it takes three boundaries, and this dataset has {self.job.info.boundaries}"
            )
        if not self.job.settings.draft_vocab_size:
            raise WrongChoice(
                format="angelslim",
                reason="its trainer does not start without a vocabulary map; give --draft-vocab-size as in the draft"
                " model's config",
            )

    def describe(self) -> dict[str, Any]:
        """Keys and shapes."""
        return {
            "tensors": {
                "input_ids": "int64 [1, n]",
                "loss_mask": "int64 [1, n]",
                "hidden_states": "[1, n, k*H]",
                "target_hiddens": "[1, n, H]",
            },
            "last_state": "post_norm",
            "layer_ids": self.job.eagle_ids,
        }

    def units(self) -> list[Unit]:
        """A file a sample, in folders named as AngelSlim's own generator does."""
        count = len(self.job.samples)
        units: list[Unit] = []
        for at in range(count):
            first = at - at % _ROWS_PER_FOLDER
            folder = f"data/rank_0/rows_{first}-{min(first + _ROWS_PER_FOLDER, count)}"
            units.append(Unit(f"{folder}/data_{at}.ckpt", at, at + 1))
        return units

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample."""
        save(
            path,
            {
                "input_ids": sample.input_ids[None],
                "loss_mask": sample.loss_mask[None],
                "hidden_states": sample.aux[None],
                "target_hiddens": sample.last[None],
            },
        )
        return {}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_torch_ids(path)

    def finish(self, finished: Finished) -> None:
        """The vocabulary map, in the data folder, where the trainer looks."""
        if finished.vocabulary is not None:
            save(self.job.out / "data" / "vocab_mapping.pt", finished.vocabulary.tensors())

    def command(self) -> list[str]:
        """The script of the AngelSlim repository."""
        data = shlex.quote(str(self.job.out / "data"))
        model = shlex.quote(self.job.model.path)
        draft = "DRAFT_CONFIG.json"
        if self.job.settings.draft_config is not None:
            draft = shlex.quote(str(self.job.out / "draft_config.json"))
        command = (
            f"python tools/train_eagle3_offline.py --training_mode offline --target_model_name_or_path {model}"
            f" --draft_model_config_path {draft} --train_hidden_path {data}"
            f" --model_max_length {self.job.longest} --bf16 --output_dir OUTPUT"
        )
        return [command]
