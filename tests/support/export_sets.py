"""Datasets to export, and the folder of the model whose final norm their last states come out of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from hs_formats.dataset import DatasetPaths
from hs_formats.index import DatasetIndex
from hs_formats.names import Rid
from hs_formats.verified import VerifiedSet
from part_factory import Record, dataset_info, write_dataset

__all__ = ["EPS", "ExportSet", "make_export_set", "norm_model", "verify_all"]

EPS = 1e-5


@dataclass(frozen=True)
class ExportSet:
    """A dataset, its records by sample id in order, and its model's folder."""

    root: Path
    model: Path
    records: dict[str, Record]
    boundaries: Sequence[int]

    @property
    def paths(self) -> DatasetPaths:
        """Of the dataset."""
        return DatasetPaths(self.root)


def norm_model(
    folder: Path,
    *,
    hidden_size: int = 64,
    vocab_size: int = 512,
    num_layers: int = 8,
    weight: torch.Tensor | None = None,
    key: str = "model.norm.weight",
    **config: Any,
) -> torch.Tensor:
    """A folder with config.json and the final norm's weight alone; returns the weight."""
    folder.mkdir(parents=True, exist_ok=True)
    if weight is None:
        weight = torch.exp(torch.randn(hidden_size, generator=torch.Generator().manual_seed(5)) * 0.7)
    weight = weight.to(torch.bfloat16)
    save_file({key: weight}, str(folder / "model.safetensors"))
    about = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "num_hidden_layers": num_layers,
        "rms_norm_eps": EPS,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(about))
    return weight


def make_export_set(
    root: Path,
    lengths: Sequence[int],
    *,
    dtype: torch.dtype = torch.bfloat16,
    boundaries: Sequence[int] = (2, 4, 5),
    hidden_size: int = 64,
    gain: str = "w",
    verified: bool = True,
    **model: Any,
) -> ExportSet:
    """A dataset of `lengths` tokens a sample below `root`; slots grow and one channel stands out, as in real ones."""
    folder = root / "model"
    weight = norm_model(folder, hidden_size=hidden_size, **model).float()
    generator = torch.Generator().manual_seed(len(lengths))
    records: dict[str, Record] = {}
    for row, n in enumerate(lengths):
        raw = torch.randn(n, len(boundaries) + 1, hidden_size, generator=generator)
        raw *= torch.tensor([3.0 * 4**slot for slot in range(len(boundaries) + 1)])[:, None]
        raw[..., 3] *= 20
        last = raw[:, -1]
        last = last * torch.rsqrt(last.pow(2).mean(-1, keepdim=True) + EPS)
        raw[:, -1] = last * (1 + weight if gain == "1+w" else weight)
        ids = torch.randint(0, 512, (n,), generator=generator).tolist()
        sample_id = f"chat/{row}"
        records[sample_id] = Record(
            sample_id=sample_id,
            rid=Rid("0000abcd", row, 0),
            ids=ids,
            states=raw.to(dtype),
            cuts=[n // 2] if n > 3 else [],
            mask=((n // 3, n),),
        )
    info = dataset_info(
        model=str(folder),
        num_layers=8,
        boundaries=list(boundaries),
        dtype=str(dtype).removeprefix("torch."),
        hidden_size=hidden_size,
        capture={"sglang": "0.5.20"},
    )
    paths = write_dataset(root / "data" / "prompts", list(records.values()), info=info)
    if verified:
        verify_all(paths)
    return ExportSet(paths.root, folder, records, boundaries)


def verify_all(paths: DatasetPaths) -> None:
    """Mark every sample as verified, as `hs-client verify` does."""
    VerifiedSet.of(DatasetIndex.load(paths).samples.values()).write(paths)
