"""The margins that excuse a mismatch: against the experts that transformers' own routers choose."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from routing import deepseek_margins, routing_margins, softmax_margins
from tiny_models import text_model


def test_margins_by_hand() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 2.0], [5.0, 1.0, 0.0, 0.0]])
    probabilities = logits.softmax(dim=-1)
    assert softmax_margins(logits, top_k=1).tolist() == pytest.approx(
        [0.0, float(probabilities[1, 0] - probabilities[1, 1])]
    )
    # Two groups of two; the second wins by its sum, by 0.5; inside it the better one is 0.125 ahead.
    scores = torch.tensor([[0.25, 0.25, 0.4375, 0.5625]])
    margins = deepseek_margins(scores.logit(), torch.zeros(4), top_k=1, groups=2, top_groups=1)
    assert margins.tolist() == pytest.approx([0.125])
    bias = torch.tensor([0.0, 0.0, 0.0, -0.1875])  # now the group wins by 0.3125, the other one by 0.0625
    margins = deepseek_margins(scores.logit(), bias, top_k=1, groups=2, top_groups=1)
    assert margins.tolist() == pytest.approx([0.0625])


@given(st.integers(0, 2**32 - 1))
def test_a_change_below_half_the_margin_changes_no_choice(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.rand(3, 8, generator=draw) * 0.8 + 0.1
    margins = deepseek_margins(scores.logit(), torch.zeros(8), top_k=2, groups=2, top_groups=1)
    # A group's score is a sum of two, so that each may move by a quarter of the margin.
    moved = scores + (torch.rand(3, 8, generator=draw) - 0.5) * margins[:, None] / 2 * 0.99

    def choice(values: torch.Tensor) -> list[list[int]]:
        grouped = values.unflatten(-1, (2, 4))
        best = grouped.topk(2, dim=-1)
        group = best.values.sum(dim=-1).argmax(dim=-1)
        return [sorted((4 * g + best.indices[row, g]).tolist()) for row, g in enumerate(group.tolist())]

    sure = [row for row in range(3) if margins[row] > 1e-5]
    assert [choice(scores)[row] for row in sure] == [choice(moved)[row] for row in sure]


@pytest.mark.parametrize(("name", "routed"), [("tiny-llama", False), ("tiny-qwen3-moe", True), ("tiny-dsv3", True)])
def test_margins_of_a_model(name: str, routed: bool) -> None:
    from transformers import AutoModelForCausalLM

    inner = AutoModelForCausalLM.from_pretrained(text_model(name)).eval().model
    margins = routing_margins(inner, range(40, 80))
    assert margins.shape == (40,)
    assert bool(margins.isfinite().all()) == routed
    assert float(margins.min()) >= 0
