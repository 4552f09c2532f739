"""Datasets of real states for tests of `hs-client verify`: what transformers computes, written as the mover writes it.

The values are those of a capture (other tests show that they are equal), without the half minute of a server. Where
only the books matter, drawn states do: they too depend on the tokens up to theirs, and on their own token most.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from checker import Reference
from hs_formats.dataset import DatasetPaths
from hs_formats.names import Rid
from part_factory import Record, dataset_info, write_dataset
from tiny_models import NUM_LAYERS, text_model

__all__ = ["BOUNDARIES", "chats", "drawn_records", "real_records", "write_real_set"]

BOUNDARIES = (2, 4, 5)
CHUNK_TOKENS = 32


def chats(count: int, *, seed: int, longest: int = 90) -> list[list[int]]:
    """Token ids of `count` prompts: most begin alike, as chats do, some with tokens of their own; frequent words and
    rare ones; 1 to `longest` tokens; every seventh prompt is one that was there before.
    """
    draw = random.Random(seed)
    words = [round(3 + 490 * draw.random() ** 3) for _ in range(4000)]
    found: list[list[int]] = []
    for number in range(count):
        n = (1, 2, 5, 32, 33)[number] if number < 5 else draw.randrange(8, longest + 1)
        ids = [draw.choice(words) for _ in range(n)]
        if number % 5:
            ids[:4] = [1, 509, 7, 8][:n]
        found.append(found[draw.randrange(len(found))] if number % 7 == 6 else ids)
    return found


def real_records(
    model: str, prompts: Sequence[Sequence[int]], *, dtype: Any = torch.float32, run: str = "0000abcd"
) -> list[Record]:
    """One record for each prompt, in parts of CHUNK_TOKENS, its first half masked."""
    reference = Reference(text_model(model), BOUNDARIES)
    return [_record(row, ids, reference.states(ids).to(dtype), run) for row, ids in enumerate(prompts)]


def drawn_records(prompts: Sequence[Sequence[int]], *, run: str = "0000abcd", hidden: int = 32) -> list[Record]:
    """The same without a model, float32."""
    tokens = torch.randn(512, len(BOUNDARIES) + 1, hidden, generator=torch.Generator().manual_seed(1))

    def states(ids: Sequence[int]) -> torch.Tensor:
        digest = hashlib.sha256()
        rows = []
        for token in ids:
            digest.update(token.to_bytes(8, "little"))
            generator = torch.Generator().manual_seed(int.from_bytes(digest.digest()[:7], "little"))
            rows.append(tokens[token] + 0.3 * torch.randn(*tokens.shape[1:], generator=generator))
        return torch.stack(rows)

    return [_record(row, ids, states(ids), run) for row, ids in enumerate(prompts)]


def _record(row: int, ids: Sequence[int], states: torch.Tensor, run: str) -> Record:
    n = len(ids)
    return Record(
        sample_id=f"chat-{row}" if run == "0000abcd" else f"chat-{run}-{row}",
        rid=Rid(run, row, 0),
        ids=list(ids),
        states=states,
        cuts=range(CHUNK_TOKENS, n, CHUNK_TOKENS),
        mask=((n // 2, n),),
    )


def write_real_set(root: Path, records: Sequence[Record]) -> DatasetPaths:
    """The dataset of `records`."""
    states = records[0].states
    info = replace(
        dataset_info(),
        num_layers=NUM_LAYERS,
        boundaries=list(BOUNDARIES),
        dtype=str(states.dtype).removeprefix("torch."),
        hidden_size=states.shape[2],
    )
    return write_dataset(root, records, info=info)
