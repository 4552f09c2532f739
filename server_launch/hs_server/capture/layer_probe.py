"""For canary requests alone: do the captured slots hold what entered the layers that they are named after?

`layers_to_capture` is SGLang's word, and its meaning has changed between versions. So while a batch with a canary
request runs, a hook on every decoder layer notes the first rows of the residual stream that enters it, and each slot is
compared with them. A layer that is replayed from a CUDA graph, or is called in a way not known here, tells nothing: the
slot is then neither proved nor refuted. The hooks exist during that one forward pass only.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["LayerProbe", "ProbeResult", "judge_streams"]

_ROWS = 16
_TOLERANCE = 0.02
"""Rounding of a sum in bfloat16 is below 0.004 of its size."""

_CLEARLY = 4.0

_PARTIAL_SUM = "_sglang_needs_allreduce_fusion"
"""SGLang marks hidden states so whose all-reduce is left to the layer: they are not the stream yet."""


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


def judge_streams(
    streams: dict[int, torch.Tensor], slots: Sequence[torch.Tensor], boundaries: Sequence[int]
) -> ProbeResult:
    """Compare slots with streams.

    Args:
        streams: layer → the first rows [m, H] of what entered it, float32 on the host.
        slots: of each boundary [m', H], m' >= m, on the host.
        boundaries: ascending.
    """
    proved = bool(streams)
    moved: dict[int, int] = {}
    for boundary, slot in zip(boundaries, slots, strict=True):
        far = {layer: _distance(slot[: stream.shape[0]].float(), stream) for layer, stream in streams.items()}
        near = min(far, key=lambda layer: (far[layer], abs(layer - boundary)), default=-1)
        if boundary in far and far[boundary] <= far[near]:
            proved = proved and far[boundary] <= _TOLERANCE
            continue
        proved = False
        # Only a clear match with another layer refutes: what matches nothing may be a stream not understood here.
        own = far.get(boundary, float("inf"))
        if near >= 0 and boundary in far and far[near] <= _TOLERANCE and far[near] * _CLEARLY < own:
            moved[boundary] = near
    return ProbeResult(proved, moved)


def _distance(slot: torch.Tensor, stream: torch.Tensor) -> float:
    if slot.shape != stream.shape:
        return float("inf")
    size, far = float(stream.norm()), float((slot - stream).norm())
    if far == 0.0:
        return 0.0
    return far / size if math.isfinite(far) and size > 0 else float("inf")


class LayerProbe:
    """Hooks on `layers`, the decoder layers of the model in order, for one forward pass at a time."""

    def __init__(self, layers: Sequence[torch.nn.Module], boundaries: Sequence[int]) -> None:
        self._layers = layers
        self._boundaries = tuple(boundaries)
        self._handles: list[Any] = []
        self._streams: dict[int, torch.Tensor] = {}

    def start(self) -> None:
        """Watch the next forward pass."""
        self.stop()
        self._streams = {}
        for index, layer in enumerate(self._layers):
            hook = functools.partial(self._note, index)
            self._handles.append(layer.register_forward_pre_hook(hook, with_kwargs=True))

    def stop(self) -> None:
        """Take the hooks off; what they noted stays."""
        while self._handles:
            self._handles.pop().remove()

    def judge(self, slots: Sequence[torch.Tensor]) -> ProbeResult:
        """Compare the k+1 `slots` [T, H] of the forward pass that was watched. Waits for the device."""
        streams, self._streams = self._streams, {}
        rows = [slot[:_ROWS].cpu() for slot in slots[: len(self._boundaries)]]
        return judge_streams({layer: stream.cpu() for layer, stream in streams.items()}, rows, self._boundaries)

    def _note(self, index: int, layer: torch.nn.Module, args: Any, kwargs: Any) -> None:
        try:
            given = inspect.signature(layer.forward).bind(*args, **kwargs).arguments
            hidden, residual = given["hidden_states"], given["residual"]
            if getattr(hidden, _PARTIAL_SUM, False):
                return
            stream = hidden[:_ROWS] if residual is None else hidden[:_ROWS] + residual[:_ROWS]
            # A copy even where `float` changes nothing: layers write into their inputs.
            self._streams[index] = stream.detach().to(torch.float32, copy=True)
        except Exception:  # noqa: BLE001 - called in a way not known here; the forward pass goes on
            self._streams.pop(index, None)
