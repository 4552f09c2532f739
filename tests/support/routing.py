"""How near a mixture-of-experts model of transformers was to choosing other experts.

Two right implementations of the same model differ in the last bits. Where the choice of an expert hangs on those bits
their states differ by far more than rounding, which is nobody's fault; everywhere else it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["deepseek_margins", "routing_margins", "softmax_margins"]


def softmax_margins(logits: torch.Tensor, *, top_k: int) -> torch.Tensor:
    """[n]: how much less probable than the last chosen expert the first refused one is; of logits [n, experts]."""
    best = logits.float().softmax(dim=-1).topk(top_k + 1, dim=-1).values
    return best[:, top_k - 1] - best[:, top_k]


def deepseek_margins(
    logits: torch.Tensor, bias: torch.Tensor, *, top_k: int, groups: int, top_groups: int
) -> torch.Tensor:
    """[n]: the same for DeepSeek-V3, which first chooses groups by the sum of their two best biased scores."""
    scores = logits.float().sigmoid() + bias
    grouped = scores.unflatten(-1, (groups, -1))
    by_group = grouped.topk(2, dim=-1).values.sum(dim=-1).sort(dim=-1, descending=True)
    margins = torch.full(logits.shape[:1], float("inf"))
    if top_groups < groups:
        margins = by_group.values[:, top_groups - 1] - by_group.values[:, top_groups]
    chosen = torch.zeros(by_group.values.shape, dtype=torch.bool).scatter_(1, by_group.indices[:, :top_groups], True)
    best = grouped.masked_fill(~chosen.unsqueeze(-1), float("-inf")).flatten(1).topk(top_k + 1, dim=-1).values
    return torch.minimum(margins, best[:, top_k - 1] - best[:, top_k])


def routing_margins(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """[n]: the smallest margin of all layers at each token of `ids`; infinite in a model without experts.

    Args:
        model: the inner model (``.model``) of a Qwen-MoE or DeepSeek-V3 of transformers.
        ids: token ids.
    """
    config = model.config
    margins = torch.full((len(ids),), float("inf"))

    def keep(gate: Any, _arguments: Any, output: Any) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        if hasattr(gate, "e_score_correction_bias"):
            found = deepseek_margins(
                logits,
                gate.e_score_correction_bias,
                top_k=config.num_experts_per_tok,
                groups=config.n_group,
                top_groups=config.topk_group,
            )
        else:
            found = softmax_margins(logits, top_k=config.num_experts_per_tok)
        margins.copy_(torch.minimum(margins, found))

    gates = [gate for name, gate in model.named_modules() if name.endswith(".mlp.gate")]
    hooks = [gate.register_forward_hook(keep) for gate in gates]
    try:
        with torch.inference_mode():
            model(torch.tensor([list(ids)]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return margins
