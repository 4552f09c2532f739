"""Batches for EAGLE-3 training: samples padded at the end, and the shift between a token and what predicts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import torch

from hs_formats.reader import Sample

__all__ = ["Eagle3Batch", "Eagle3Collator"]


class Eagle3Batch(TypedDict):
    """B samples, padded with zeros to L rows.

    With g_t the captured states of token t side by side (k*H channels, lowest boundary first), y_t its last state and
    l_t its loss mask, row t holds, shifted / unshifted:

    - ``input_ids`` int64 [B, L]: x_{t+1} / x_t
    - ``hidden_states`` [B, L, k*H]: g_t / g_t
    - ``target`` [B, L, H]: y_{t+1} / y_t; the model's head makes of it the distribution of the token after
    - ``loss_mask`` int64 [B, L]: l_{t+1} / l_t, where 0 in the last row, which has nothing left to predict
    - ``attention_mask`` int64 [B, L]: 1 in rows that are no padding
    - ``position_ids`` int64 [B, L]: t
    """

    input_ids: torch.Tensor
    hidden_states: torch.Tensor
    target: torch.Tensor
    loss_mask: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor


class Eagle3Collator:
    """Makes an `Eagle3Batch` of samples; ``DataLoader(dataset, collate_fn=Eagle3Collator())``.

    The draft model sees the state of token t and the embedding of token t+1, and is trained towards what the target
    model says after token t+1 (EAGLE-3, section 3.1). `shift` does that here, as the data code of speculators does, and
    a sample gives n - 1 rows. Without it rows stay with their tokens, as SpecForge's and AngelSlim's data code have
    them: these trainers move ids and target themselves, but leave the loss mask where it is.

    Args:
        shift: move ids, target and mask one token to the left.
        max_length: cut samples to so many tokens first.
        pad_to_multiple_of: make L a multiple of it.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, *, shift: bool = True, max_length: int | None = None, pad_to_multiple_of: int = 1) -> None:
        if pad_to_multiple_of < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"max_length {max_length}, pad_to_multiple_of {pad_to_multiple_of}: 1 at least")
        self._shift = shift
        self._max_length = max_length
        self._multiple = pad_to_multiple_of

    def __call__(self, samples: Sequence[Sample]) -> Eagle3Batch:
        """The batch of `samples`, which have all slots of one dataset.

        Raises:
            ValueError: there is no sample, or one without a captured slot beside the last state.
        """
        if not samples:
            raise ValueError("no sample to make a batch of")
        _, slots, hidden = samples[0].hidden_states.shape
        if slots < 2:
            raise ValueError("the samples have one slot, where captured states and the last state are needed")
        lost = 1 if self._shift else 0
        counts = [max(0, min(len(s.input_ids), self._max_length or len(s.input_ids)) - lost) for s in samples]
        longest = -(-max(1, *counts) // self._multiple) * self._multiple
        size = len(samples), longest
        like = samples[0].hidden_states
        batch = Eagle3Batch(
            input_ids=torch.zeros(size, dtype=torch.int64),
            hidden_states=like.new_zeros((*size, (slots - 1) * hidden)),
            target=like.new_zeros((*size, hidden)),
            loss_mask=torch.zeros(size, dtype=torch.int64),
            attention_mask=torch.zeros(size, dtype=torch.int64),
            position_ids=torch.arange(longest).expand(size).clone(),
        )
        for at, (sample, count) in enumerate(zip(samples, counts, strict=True)):
            moved = slice(lost, lost + count)
            batch["input_ids"][at, :count] = sample.input_ids[moved]
            batch["hidden_states"][at, :count] = sample.hidden_states[:count, :-1].flatten(1)
            batch["target"][at, :count] = sample.hidden_states[moved, -1]
            batch["loss_mask"][at, :count] = sample.loss_mask[moved]
            batch["attention_mask"][at, :count] = 1
            if not self._shift and count:
                batch["loss_mask"][at, count - 1] = 0
        return batch
