"""speculators 0.9.0: ``data/hidden_states/hs_<i>.safetensors`` beside a Hugging Face dataset of ids and masks.

The last slot is the state BEFORE the final norm, which the trainer applies itself: see `hs_client.export.norm`.
"""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hs_client.export.arrow import ArrowFolder
from hs_client.export.errors import WrongChoice
from hs_client.export.layout import ExportSample, Finished, Ids, Job, PerSample, Unit
from hs_client.export.norm import PreNorm, model_gain, speculators_gain
from hs_client.export.safetensors_files import read_safetensors_ids, save_tensors
from hs_client.export.settings import ALGORITHMS
from hs_client.export.torch_files import save

__all__ = ["Speculators", "quantize"]

_FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(_FP8).max
_SMALLEST_SCALE = 1e-12


def quantize(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States [n, k+1, H] as float8_e4m3fn and float32 scales [n, 1, 1], one a token, as speculators' fp8 backend reads.

    The last slot, which only an RMSNorm sees, is first scaled by a power of two to the size of the others: it has RMS
    1, and beside states in the hundreds the common scale would leave it few values.
    """
    wide = states.to(torch.float32, copy=True)
    most = wide.abs().amax(-1)
    grow = torch.floor(torch.log2(most[:, :-1].amax(-1) / most[:, -1].clamp(min=1e-30))).clamp(min=0, max=60)
    wide[:, -1] *= torch.exp2(grow)[:, None]
    scales = (wide.abs().amax((1, 2), keepdim=True) / _FP8_MAX).clamp(min=_SMALLEST_SCALE)
    return (wide / scales).to(_FP8), scales


class Speculators(PerSample):
    """Rows are numbered in the order of the plan; the trainer takes its validation split from the end."""

    algorithms = ALGORITHMS
    dtypes = ("bfloat16", "float32")

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._norm: PreNorm | None = None
        self._norm_name = ""
        self._arrow: ArrowFolder | None = None

    def check(self) -> None:
        """Read the model's final norm, and refuse where it cannot be undone for this trainer."""
        super().check()
        settings = self.job.settings
        model = self.job.model
        gain = model_gain(model.model_type)
        self._norm_name, weight = model.final_norm()
        if weight.shape != (self.job.info.hidden_size,):
            raise WrongChoice(
                format="speculators",
                reason=f"{self._norm_name} of {model.path} has shape {list(weight.shape)}, and the states have"
                f" {self.job.info.hidden_size} channels; name the right model with --model PATH",
            )
        self._norm = PreNorm(weight, model.norm_eps, gain, speculators_gain(model.model_type, settings.algorithm))

    def describe(self) -> dict[str, Any]:
        """Keys and shapes, and what was done to the last state."""
        norm = self._norm
        assert norm is not None  # noqa: S101  # check() comes first
        tensors = {"hidden_states": "[n, k+1, H]", "token_ids": "int64 [n]"}
        if self.job.settings.fp8:
            tensors = {
                "hidden_states": "float8_e4m3fn [n, k+1, H]",
                "hidden_states_scales": "float32 [n, 1, 1]",
                "token_ids": "int64 [n]",
            }
        return {
            "tensors": tensors,
            "last_state": "pre_norm",
            "last_state_from": "the stored post_norm state divided by the gain of the model's final RMSNorm, so that"
            " the trainer's norm gives the stored state again; its length is not the model's",
            "norm": {
                "tensor": self._norm_name,
                "model": self.job.model.path,
                "gain": norm.gain,
                "eps": norm.eps,
                "smallest_gain": float(norm.gains.abs().min()),
            },
            "layer_ids": list(self.job.info.boundaries),
        }

    def units(self) -> list[Unit]:
        """A file a sample, all in one folder, as the trainer has it."""
        return [Unit(f"data/hidden_states/hs_{at}.safetensors", at, at + 1) for at in range(len(self.job.samples))]

    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """One sample; returns how far the trainer's norm is off at worst, in bf16 steps."""
        assert self._norm is not None  # noqa: S101
        before, ulps = self._norm.undo(sample.planned.sample_id, sample.stored[:, -1], sample.states.dtype)
        states = torch.cat([sample.states[:, :-1], before[:, None]], dim=1)
        if self.job.settings.fp8:
            quantized, scales = quantize(states)
            tensors = {"hidden_states": quantized, "hidden_states_scales": scales}
        else:
            tensors = {"hidden_states": states}
        save_tensors(path, {**tensors, "token_ids": sample.input_ids})
        return {"norm_ulps": ulps}

    def ids_of(self, path: Path) -> Ids:
        """One sample's."""
        return read_safetensors_ids(path, "token_ids")

    def add_row(self, ids: Ids, mask: npt.NDArray[np.bool_]) -> None:
        """A row of the Hugging Face dataset."""
        if self._arrow is None:
            self._arrow = ArrowFolder(self.job.out / "data")
        self._arrow.add(ids, mask)

    def finish(self, finished: Finished) -> None:
        """The dataset, the token frequencies and the vocabulary maps."""
        data = self.job.out / "data"
        if self._arrow is not None:
            self._arrow.close()
        save(data / "token_freq.pt", finished.counts.nonzero())
        if finished.vocabulary is not None:
            size = len(finished.vocabulary.d2t)
            np.save(data / f"d2t-{size}.npy", finished.vocabulary.d2t)
            np.save(data / f"t2d-{size}.npy", finished.vocabulary.t2d)

    def command(self) -> list[str]:
        """``speculators train``, told to generate nothing and to cut nothing."""
        job = self.job
        words = [
            *("speculators", "train", "--verifier-name-or-path", job.model.path),
            *("--data-path", str(job.out / "data"), "--speculator-type", job.settings.algorithm),
            *("--target-layer-ids", *map(str, job.info.boundaries)),
            *("--total-seq-len", str(max(8192, 1024 * math.ceil(job.longest / 1024)))),
            *("--on-missing", "raise"),
        ]
        if job.settings.draft_vocab_size:
            words += ["--draft-vocab-size", str(job.settings.draft_vocab_size)]
        if job.settings.fp8:
            words += ["--hidden-states-backend", "fp8"]
        return [shlex.join(words)]
