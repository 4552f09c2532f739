"""For canary requests alone: do the captured slots hold what entered the layers that they are named after?

`layers_to_capture` is SGLang's word, and its meaning has changed between versions. So while a batch with a canary
request runs, hooks note the first rows of what each decoder layer's attention is given. That is the residual stream
after the layer's input norm, in every version and also where all-reduces are fused, so each slot is normed alike and
compared. A layer that is replayed from a CUDA graph, or is built in a way not known here, tells nothing: the slot is
then neither proved nor refuted. The hooks exist during that one forward pass only.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["LayerProbe", "ProbeResult", "Seen", "judge_slots"]

_ROWS = 16
_TOLERANCE = 0.02
"""Rounding to bfloat16 is below 0.004 of a value's size."""

_CLEARLY = 4.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a layer's attention was given, [m, H], and the layer's RMS norm: its weight [H] and epsilon."""

    given: torch.Tensor
    weight: torch.Tensor
    epsilon: float

    def distance(self, slot: torch.Tensor) -> float:
        """How far `slot` [m', H], normed by this layer, is from what was given, of its size."""
        rows = slot[: len(self.given)].float()
        if rows.shape != self.given.shape or rows.shape[1:] != self.weight.shape:
            return float("inf")
        scale = torch.rsqrt(rows.square().mean(dim=1, keepdim=True) + self.epsilon)
        given = self.given.float()
        far, size = float((rows * scale * self.weight.float() - given).norm()), float(given.norm())
        return far / size if math.isfinite(far) and size > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`moved` names the boundaries whose slot holds another layer's stream: boundary → that layer."""

    proved: bool
    moved: dict[int, int] = field(default_factory=dict)

    @property
    def complaint(self) -> str:
        """What is wrong, for the failure ring; empty where nothing is."""
        found = [
            f"boundary {boundary} holds what enters layer {layer} ({layer - boundary:+d})"
            for boundary, layer in self.moved.items()
        ]
        return "; ".join(found)


def judge_slots(seen: dict[int, Seen], slots: Sequence[torch.Tensor], boundaries: Sequence[int]) -> ProbeResult:
    """Compare slots with what the layers were given.

    Args:
        seen: by layer.
        slots: of each boundary [m', H]; all tensors on one device.
        boundaries: ascending.
    """
    proved = bool(seen)
    moved: dict[int, int] = {}
    for boundary, slot in zip(boundaries, slots, strict=True):
        far = {layer: it.distance(slot) for layer, it in seen.items()}
        near = min(far, key=lambda layer: (far[layer], abs(layer - boundary)), default=-1)
        own = far.get(boundary, float("inf"))
        if own <= _TOLERANCE and own <= far[near]:
            continue
        proved = False
        # Only a clear match with another layer refutes: what matches nothing may be a layer not understood here.
        if boundary in far and far[near] <= _TOLERANCE and far[near] * _CLEARLY < own:
            moved[boundary] = near
    return ProbeResult(proved, moved)


class LayerProbe:
    """Hooks on the attention of `layers`, the decoder layers of the model in order, for one forward pass at a time."""

    def __init__(self, layers: Sequence[Any], boundaries: Sequence[int]) -> None:
        self._layers = layers
        self._boundaries = tuple(boundaries)
        self._handles: list[Any] = []
        self._given: dict[int, torch.Tensor] = {}

    def start(self) -> None:
        """Watch the next forward pass."""
        self.stop()
        self._given = {}
        for index, layer in enumerate(self._layers):
            attention = getattr(layer, "self_attn", None)
            if isinstance(attention, torch.nn.Module):
                hook = functools.partial(self._note, index)
                self._handles.append(attention.register_forward_pre_hook(hook, with_kwargs=True))

    def stop(self) -> None:
        """Take the hooks off; what they noted stays."""
        while self._handles:
            self._handles.pop().remove()

    def judge(self, slots: Sequence[torch.Tensor]) -> ProbeResult:
        """Compare the k+1 `slots` [T, H] of the forward pass that was watched. Waits for the device."""
        given, self._given = self._given, {}
        seen: dict[int, Seen] = {}
        for index, rows in given.items():
            norm = getattr(self._layers[index], "input_layernorm", None)
            weight = getattr(norm, "weight", None)
            epsilon = getattr(norm, "variance_epsilon", None)
            if isinstance(weight, torch.Tensor) and isinstance(epsilon, float):
                seen[index] = Seen(rows, weight.detach(), epsilon)
        rows_of_slots = [slot[:_ROWS] for slot in slots[: len(self._boundaries)]]
        return judge_slots(seen, rows_of_slots, self._boundaries)

    def _note(self, index: int, attention: torch.nn.Module, args: Any, kwargs: Any) -> None:
        try:
            given = inspect.signature(attention.forward).bind(*args, **kwargs).arguments["hidden_states"]
            self._given[index] = given[:_ROWS].detach().clone()  # the buffer is used again
        except Exception:  # noqa: BLE001 - called in a way not known here; the forward pass goes on
            self._given.pop(index, None)
