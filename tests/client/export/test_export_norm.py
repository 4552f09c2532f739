"""The state before the final norm: what the trainer's norm makes of it, and what is refused."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hs_client.export.errors import BadSample, NormUnsound
from hs_client.export.norm import (
    GAINS,
    MOST_ULPS,
    TINY_GAIN,
    PreNorm,
    bf16_ulps,
    model_gain,
    rms_norm,
    speculators_gain,
)

EPS = 1e-5


def layer_outputs(rows: int, hidden: int, outliers: int, seed: int) -> torch.Tensor:
    """Residual streams with a few channels that tower over the rest, as real models have them."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(rows, hidden, generator=generator) * (1 + 50 * torch.rand(rows, 1, generator=generator))
    for _ in range(outliers):
        channel = int(torch.randint(hidden, (1,), generator=generator))
        states[:, channel] *= 10 ** (3 * torch.rand(rows, generator=generator))
    return states


def gains(hidden: int, spread: float, seed: int) -> torch.Tensor:
    weight = torch.exp(spread * torch.randn(hidden, generator=torch.Generator().manual_seed(seed)))
    return weight.clamp(min=2 * TINY_GAIN)


def fused_norm(states: torch.Tensor, gain: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As SGLang's kernel: rounded once, at the end."""
    return (states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + EPS) * gain).to(dtype)


@settings(deadline=None, max_examples=60)
@given(
    hidden=st.sampled_from([16, 64, 576]),
    outliers=st.integers(0, 3),
    spread=st.floats(0, 1.5),
    seed=st.integers(0, 2**16),
    one_plus=st.booleans(),
    stored=st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_the_trainers_norm_gives_the_stored_state(
    hidden: int, outliers: int, spread: float, seed: int, one_plus: bool, stored: torch.dtype
) -> None:
    gain = gains(hidden, spread, seed)
    weight = (gain - 1 if one_plus else gain).to(torch.bfloat16)
    gain = weight.float() + (1 if one_plus else 0)
    if bool((gain.abs() < TINY_GAIN).any()):
        return
    kind: Any = "1+w" if one_plus else "w"
    after = fused_norm(layer_outputs(40, hidden, outliers, seed), gain, stored)
    if stored == torch.float16 and bool((after.abs()[after != 0] < 6e-5).any()):
        return  # subnormal: the stored value itself has lost digits
    before, worst = PreNorm(weight, EPS, kind, kind).undo("s", after, torch.bfloat16)
    assert worst <= MOST_ULPS
    for wide in (weight, weight.float()):  # a trainer keeps it in either dtype
        if kind == "1+w" or wide.dtype == torch.bfloat16:
            assert int(bf16_ulps(rms_norm(before, wide, EPS, kind), after).max()) <= MOST_ULPS


def test_rows_of_any_number_and_blocks_are_all_done() -> None:
    weight = gains(32, 0.5, 1).to(torch.bfloat16)
    after = fused_norm(layer_outputs(2500, 32, 1, 3), weight.float(), torch.bfloat16)
    undo = PreNorm(weight, EPS, "w", "w").undo
    whole, _ = undo("s", after, torch.bfloat16)
    assert torch.equal(whole[2490:], undo("s", after[2490:], torch.bfloat16)[0])
    assert undo("s", after[:0], torch.bfloat16)[0].shape == (0, 32)


def test_wrong_weights_kinds_and_norms_are_found() -> None:
    weight = gains(128, 0.5, 1)
    after = fused_norm(layer_outputs(50, 128, 0, 2), weight, torch.bfloat16)
    centred = torch.nn.functional.layer_norm(layer_outputs(50, 128, 0, 2), (128,), weight, torch.full((128,), 0.5))
    other = gains(128, 0.5, 9)
    for norm, states in (
        (PreNorm(other, EPS, "w", "w"), after),
        (PreNorm(weight * 1.02, EPS, "w", "w"), after),
        (PreNorm(weight, EPS, "1+w", "1+w"), after),
        (PreNorm(weight, EPS, "w", "w"), centred.to(torch.bfloat16)),
    ):
        with pytest.raises(BadSample, match=r"sample 's' cannot be exported: token \d+, divided by .* instead of 1"):
            norm.undo("s", states, torch.bfloat16)


def test_a_zeroed_row_is_named() -> None:
    weight = gains(128, 0.5, 1)
    after = fused_norm(layer_outputs(5000, 128, 0, 2), weight, torch.bfloat16)
    after[3017] = 0
    with pytest.raises(BadSample, match="token 3017, divided by"):
        PreNorm(weight, EPS, "w", "w").undo("s", after, torch.bfloat16)


def test_gains_that_cannot_be_divided_by_are_refused() -> None:
    for bad in (0.0, TINY_GAIN / 2, -TINY_GAIN / 2):
        weight = torch.ones(8)
        weight[5] = bad
        with pytest.raises(NormUnsound, match=r"multiplies 1 of 8 channels by less than .* \(channel 5 by"):
            PreNorm(weight, EPS, "w", "w")
        with pytest.raises(NormUnsound, match="channel 5"):
            PreNorm(weight - 1, EPS, "1+w", "1+w")
    with pytest.raises(NormUnsound, match="not finite"):
        PreNorm(torch.tensor([1.0, float("nan")]), EPS, "w", "w")


def test_models_whose_norm_is_none_of_these_are_refused() -> None:
    assert (model_gain("llama"), model_gain("gemma3_text"), model_gain("kimi_k2")) == ("w", "1+w", "w")
    with pytest.raises(NormUnsound, match="ends in a LayerNorm"):
        model_gain("gpt_neox")
    with pytest.raises(NormUnsound, match="type 'brand_new' is not known"):
        model_gain("brand_new")


@pytest.mark.parametrize(
    ("model_type", "algorithm", "refused"),
    [
        ("llama", "eagle3", False),
        ("llama", "dflash", False),
        ("gemma3_text", "eagle3", True),  # its EAGLE-3 multiplies by w, whatever the model
        ("gemma3_text", "dflash", False),
        ("qwen3_next", "dflash", True),
    ],
)
def test_a_trainer_with_another_norm_is_refused(model_type: str, algorithm: str, refused: bool) -> None:
    args = (torch.ones(4), EPS, model_gain(model_type), speculators_gain(model_type, algorithm))
    if not refused:
        PreNorm(*args)
        return
    with pytest.raises(NormUnsound, match=r"multiplies by 1\+w, and the trainer's copy of it by w"):
        PreNorm(*args)


def final_norm_class(model_type: str) -> Any:
    folder = model_type.removesuffix("_text")
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    names = set(
        re.findall(r"self\.(?:norm|final_layernorm|final_norm)\s*=\s*(\w+RMSNorm)\(", inspect.getsource(module))
    )
    (name,) = names
    return getattr(module, name)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", sorted(set(GAINS) - {"kimi_k2"}))  # Kimi brings code of its own: DeepSeek-V3's
def test_the_table_is_what_transformers_computes(model_type: str) -> None:
    from hs_server.cpu_profile import torchvision_schemas

    torchvision_schemas.install()
    norm = final_norm_class(model_type)(16, eps=EPS)
    weight = 0.5 + torch.rand(16, generator=torch.Generator().manual_seed(1))
    norm.weight.data = weight.clone()
    states = layer_outputs(4, 16, 0, 1)
    assert torch.allclose(norm(states), rms_norm(states, weight, EPS, GAINS[model_type]), atol=1e-5)
    other: Any = "w" if GAINS[model_type] == "1+w" else "1+w"
    assert not torch.allclose(norm(states), rms_norm(states, weight, EPS, other), atol=1e-2)
