"""The probe on a model made by hand: slots that hold what enters their layers, and slots that do not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from captures import BOUNDARIES, Capture, H
from hs_server.capture.copy_path import CopyPath
from hs_server.capture.layer_probe import LayerProbe, Seen, judge_slots
from hs_server.capture.plan import writers_of
from hs_server.capture.session import CaptureSession

CANARY = "hs-00000000-00000001-00"


class Norm(torch.nn.Module):  # type: ignore[misc]
    """SGLang's RMS norm, so far as the probe looks at it."""

    variance_epsilon = 1e-6

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(H) + 0.5, requires_grad=False)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(stream.square().mean(dim=1, keepdim=True) + self.variance_epsilon)
        return stream * scale * self.weight


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Writes into its input, as kernels do."""

    def forward(self, positions: Any, hidden_states: torch.Tensor, forward_batch: Any = None) -> torch.Tensor:
        hidden_states.zero_()
        return torch.randn_like(hidden_states)


class Layer(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(), Attention()

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + self.self_attn(positions=None, hidden_states=self.input_layernorm(stream))


class Odd(torch.nn.Module):  # type: ignore[misc]
    """Built in a way that is not known."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = torch.nn.Identity()

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return stream + torch.randn_like(self.self_attn(stream))


def run(layers: list[Any], rows: int = 5) -> list[torch.Tensor]:
    """What enters each layer, [rows, H]."""
    stream = torch.randn(rows, H)
    entered: list[torch.Tensor] = []
    for layer in layers:
        entered.append(stream)
        stream = layer(stream)
    return entered


def test_slots_of_their_layers_are_proved_and_the_hooks_are_gone() -> None:
    layers = [Layer() for _ in range(6)]
    probe = LayerProbe(layers, (1, 4))
    probe.start()
    entered = run(layers)
    probe.stop()
    result = probe.judge([entered[1], entered[4], torch.randn(5, H)])
    assert result.proved
    assert result.complaint == ""
    assert not any(layer.self_attn._forward_pre_hooks for layer in layers)
    assert not probe.judge([entered[1], entered[4]]).proved, "rows of an earlier pass were used again"


def test_rounding_to_bfloat16_is_no_difference() -> None:
    layers = [Layer() for _ in range(6)]
    probe = LayerProbe(layers, (1, 4))
    probe.start()
    entered = [stream.bfloat16() for stream in run(layers)]
    probe.stop()
    assert probe.judge([entered[1], entered[4]]).proved


def test_a_slot_of_the_next_layer_is_named() -> None:
    layers = [Layer() for _ in range(6)]
    probe = LayerProbe(layers, (1, 4))
    probe.start()
    entered = run(layers)
    probe.stop()
    result = probe.judge([entered[2], entered[4]])
    assert not result.proved
    assert result.complaint == "boundary 1 holds what enters layer 2 (+1)"


@pytest.mark.parametrize("layers", [[Odd(), Odd()], []], ids=["another convention", "a graph replay"])
def test_what_is_not_understood_neither_proves_nor_refutes(layers: list[Any]) -> None:
    probe = LayerProbe(layers, (1,))
    probe.start()
    run(layers)
    probe.stop()
    result = probe.judge([torch.randn(3, H)])
    assert not result.proved
    assert result.moved == {}


@given(st.integers(1, 9), st.integers(0, 9), st.floats(0, 1e-3))
def test_only_a_clear_match_with_another_layer_refutes(boundary: int, held: int, noise: float) -> None:
    made = torch.Generator().manual_seed(boundary * 16 + held)
    streams = [torch.randn(4, 32, generator=made) for _ in range(10)]
    weight = torch.rand(32, generator=made) + 0.5
    seen = {
        layer: Seen(stream * torch.rsqrt(stream.square().mean(dim=1, keepdim=True)) * weight * (1 + noise), weight, 0.0)
        for layer, stream in enumerate(streams)
    }
    result = judge_slots(seen, [streams[held]], [boundary])
    assert result.proved == (held == boundary)
    assert result.moved == ({} if held == boundary else {boundary: held})
    assert judge_slots(seen, [torch.randn(4, 32, generator=made)], [boundary]).moved == {}
    assert judge_slots({}, [streams[held]], [boundary]).moved == {}
    for odd in (torch.full((4, 32), float("nan")), torch.zeros(4, 32), torch.randn(4, 16, generator=made)):
        assert judge_slots(seen, [odd], [boundary]) == judge_slots({}, [odd], [boundary])


@pytest.mark.parametrize(
    ("rid", "writers"), [(CANARY, "all"), (CANARY[:-2] + "01", "first"), ("hs-0123abcd-00000001-00", "first")]
)
def test_every_rank_writes_the_first_attempt_of_a_canary(rid: str, writers: str) -> None:
    assert writers_of(rid, "first") == writers


def test_a_canary_with_a_misplaced_slot_is_given_up_and_others_are_not(tmp_path: Path) -> None:
    it = Capture(tmp_path)
    layers = [Layer() for _ in range(5)]
    probe = LayerProbe(layers, BOUNDARIES)
    session = CaptureSession(it.meta, it.session._copy_path, it.failed, probe=probe)
    assert isinstance(session._copy_path, CopyPath)
    for rids, shift in (((CANARY, "hs-0123abcd-00000001-00"), 1), (("hs-00000000-00000002-00",), 0)):
        session.plan(
            SimpleNamespace(
                reqs=[
                    SimpleNamespace(rid=rid, origin_input_ids=[1, 2], to_finish=None, finished_reason=None)
                    for rid in rids
                ],
                prefix_lens=[0] * len(rids),
                extend_lens=[2] * len(rids),
            )
        )
        entered = [stream.bfloat16() for stream in run(layers, rows=2 * len(rids))]
        session.observe(entered[0], [entered[boundary + shift] for boundary in BOUNDARIES])
        session.finish()
    failures = it.failures()
    assert failures == {
        CANARY: "wrong layer: boundary 1 holds what enters layer 2 (+1); boundary 3 holds what enters layer 4 (+1)"
    }
    parts = it.parts()
    assert {name[:23] for name in parts} == {"hs-0123abcd-00000001-00", "hs-00000000-00000002-00"}
    assert (session.canary_forwards, session.layers_proved) == (2, 1)
    it.ring.close()
