"""A dataset of a real model's states, computed with transformers: what a server would have captured."""

from __future__ import annotations

from pathlib import Path

import torch

from export_sets import ExportSet, verify_all
from hs_formats.names import Rid
from part_factory import Record, dataset_info, write_dataset
from tiny_models import HIDDEN_SIZE, NUM_LAYERS, VOCAB_SIZE, text_model, tiny_model

__all__ = ["BOUNDARIES", "real_set"]

BOUNDARIES = (2, 4, 5)


def real_set(root: Path, *, lengths: tuple[int, ...] = (24, 60, 33, 48)) -> ExportSet:
    """States of tiny-llama at `BOUNDARIES` and after its final norm, rounded to bfloat16."""
    from transformers import AutoModelForCausalLM

    folder = tiny_model("tiny-llama")
    model = AutoModelForCausalLM.from_pretrained(str(text_model("tiny-llama")), dtype=torch.float32)
    generator = torch.Generator().manual_seed(11)
    records: dict[str, Record] = {}
    for row, n in enumerate(lengths):
        ids = torch.randint(3, VOCAB_SIZE, (n,), generator=generator)
        with torch.no_grad():
            hidden = model(ids[None], output_hidden_states=True).hidden_states
        # transformers' last entry is already past the final norm.
        states = torch.stack([hidden[b][0] for b in (*BOUNDARIES, NUM_LAYERS)], dim=1).to(torch.bfloat16)
        sample_id = f"row-{row}"
        records[sample_id] = Record(
            sample_id=sample_id, rid=Rid("0000abcd", row, 0), ids=ids.tolist(), states=states, mask=((n // 3, n),)
        )
    info = dataset_info(
        model=str(folder),
        num_layers=NUM_LAYERS,
        boundaries=list(BOUNDARIES),
        dtype="bfloat16",
        hidden_size=HIDDEN_SIZE,
        capture={"sglang": "0.5.20"},
    )
    paths = write_dataset(root / "prompts", list(records.values()), info=info)
    verify_all(paths)
    return ExportSet(paths.root, folder, records, BOUNDARIES)
