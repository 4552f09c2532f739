"""Casting states to the dtype of an export: never silently, and never into infinity. Needs torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hs_client.export.errors import BadSample

__all__ = ["Cast", "cast_note"]

_EXACT = {("bfloat16", "float32"), ("float16", "float32")}


def cast_note(source: str, target: str) -> str:
    """What a cast does, in a few words for people and for the record."""
    if source == target:
        return "none: the stored values, bit for bit"
    if (source, target) in _EXACT:
        return f"{source} to {target}, exact"
    return f"{source} to {target}, rounded to nearest even"


@dataclass(frozen=True, slots=True)
class Cast:
    """From the dataset's dtype to the export's; both are torch's names."""

    source: str
    target: str

    @property
    def note(self) -> str:
        """As `cast_note`."""
        return cast_note(self.source, self.target)

    def apply(self, sample_id: str, states: torch.Tensor) -> torch.Tensor:
        """`states` in the target dtype, the same tensor where nothing changes.

        Raises:
            BadSample: a stored value is not finite, or is too large for the target dtype.
        """
        if not _finite(states):
            raise BadSample(sample_id=sample_id, reason="a stored state is NaN or infinite")
        if self.source == self.target:
            return states
        cast = states.to(getattr(torch, self.target))
        if not _finite(cast):
            most = float(states.abs().max())
            raise BadSample(
                sample_id=sample_id, reason=f"its largest state, {most:.4g}, is too large for {self.target}"
            )
        return cast


def _finite(states: torch.Tensor) -> bool:
    # aminmax passes NaN on and needs no mask of the states' size.
    if not states.numel():
        return True
    low, high = torch.aminmax(states)
    return bool(torch.isfinite(low) & torch.isfinite(high))
