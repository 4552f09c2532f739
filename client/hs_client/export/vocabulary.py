"""A draft vocabulary: the target's tokens that are trained on most, and the maps between the two vocabularies.

``d2t`` int64 [v] holds offsets: draft token i is target token i + d2t[i]. ``t2d`` bool [V] is True for the tokens kept.
All EAGLE-3 trainers use this pair. Ties are broken by the lower id, and a vocabulary that was not seen whole is filled
up with the lowest ids, as speculators does; the others leave ties to the order of a dict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hs_formats.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["TokenCounts", "VocabularyMap", "check_draft_size", "vocabulary_map"]

Array = npt.NDArray[np.int64]


class TokenCounts:
    """How often each target token is trained on."""

    def __init__(self, vocab_size: int = 0) -> None:
        self._counts: Array = np.zeros(vocab_size, dtype=np.int64)

    def add(self, ids: Array, mask: npt.NDArray[np.bool_]) -> None:
        """Count the `ids` [n] where `mask` [n] is True."""
        seen = np.bincount(ids[mask], minlength=len(self._counts))
        if len(seen) > len(self._counts):
            seen[: len(self._counts)] += self._counts
            self._counts = seen.astype(np.int64)
        else:
            self._counts += seen

    @property
    def counts(self) -> Array:
        """int64 [largest token id + 1, or more]."""
        return self._counts

    def nonzero(self) -> dict[int, int]:
        """Token id to count, ascending, without the tokens never trained on."""
        return {int(token): int(self._counts[token]) for token in np.flatnonzero(self._counts)}


@dataclass(frozen=True, slots=True)
class VocabularyMap:
    """d2t int64 [v], t2d bool [V], and how many of the supervised tokens the draft vocabulary covers."""

    d2t: Array
    t2d: npt.NDArray[np.bool_]
    covered: int
    total: int

    def tensors(self) -> dict[str, torch.Tensor]:
        """``d2t`` and ``t2d`` for torch."""
        import torch

        return {"d2t": torch.from_numpy(self.d2t), "t2d": torch.from_numpy(self.t2d)}

    @property
    def note(self) -> str:
        """For people."""
        share = 100 * self.covered / self.total if self.total else 0.0
        return (
            f"{len(self.d2t):,} of {len(self.t2d):,} tokens, which cover {share:.2f} % of the {self.total:,} tokens"
            " to train on"
        )


def check_draft_size(draft_size: int, target_size: int) -> None:
    """Raises:
    UsageError: the draft vocabulary is larger than the target's.
    """
    if not 0 < draft_size <= target_size:
        raise UsageError(f"--draft-vocab-size {draft_size}: the model's vocabulary has {target_size} tokens")


def vocabulary_map(counts: Array, draft_size: int, target_size: int) -> VocabularyMap:
    """The `draft_size` most frequent of `target_size` tokens by `counts`.

    Raises:
        UsageError: the draft vocabulary is larger than the target's, or a token lies outside of that.
    """
    check_draft_size(draft_size, target_size)
    if len(counts) > target_size:
        if counts[target_size:].any():
            worst = int(np.flatnonzero(counts)[-1])
            raise UsageError(f"token {worst} is trained on, and the model's vocabulary has {target_size} tokens")
        counts = counts[:target_size]
    full: Array = np.zeros(target_size, dtype=np.int64)
    full[: len(counts)] = counts
    # A stable sort of the negated counts: most frequent first, lower ids first among equals, unseen ones last.
    kept = np.sort(np.argsort(-full, kind="stable")[:draft_size])
    t2d = np.zeros(target_size, dtype=np.bool_)
    t2d[kept] = True
    return VocabularyMap(
        d2t=kept.astype(np.int64) - np.arange(draft_size, dtype=np.int64),
        t2d=t2d,
        covered=int(full[kept].sum()),
        total=int(full.sum()),
    )
