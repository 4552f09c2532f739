"""A plugin for SGLang that re-draws a model's weights after loading, for correctness checks without real weights.

SGLang's ``--load-format dummy`` draws within ±1e-3: the residual stream then hardly changes from layer to layer, and
states of wrong layers, or of wrong requests, would pass a comparison. Here matrices get a standard deviation of 0.02
and norms 1. Every parameter is drawn from a seed of its own name, so that every start gives the same model; parameters
sharded over TP ranks get a seed a rank, replicated ones the same on all.

Inert unless ``HS_BENCH_WEIGHTS`` is set.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

__all__ = ["VARIABLE", "install", "redraw"]

VARIABLE = "HS_BENCH_WEIGHTS"

_STD = 0.02
_SHARDED = frozenset({"ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding", "FusedMoE"})


def install() -> None:
    """Entry point of the plugin."""
    if not os.environ.get(VARIABLE):
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model", _after_load_model, HookType.AFTER
    )


def _after_load_model(result: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    del args, kwargs
    state = getattr(runner, "ps", runner)
    redraw(runner.model, rank=int(state.tp_rank))
    return result


def redraw(model: Any, *, rank: int) -> None:
    """Give every floating-point parameter of `model` its value; `rank` is this process's TP rank."""
    import torch

    owners = {
        f"{path}.{name}": module
        for path, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or parameter.element_size() < 2:
                continue
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.fill_(1.0)
                continue
            shard = _shard(owners.get(name), rank=rank)
            generator = torch.Generator(device=parameter.device)
            generator.manual_seed(zlib.crc32(name.encode()) * 128 + shard)
            parameter.normal_(0.0, _STD, generator=generator)
        # Models with absorbed projections (MLA) derive tensors from their parameters.
        if hasattr(model, "post_load_weights"):
            model.post_load_weights()


def _shard(owner: Any, *, rank: int) -> int:
    """Number of the shard that `owner` holds; 0 where its parameters are the same on all ranks."""
    if not any(kind.__name__ in _SHARDED for kind in type(owner).__mro__):
        return 0
    size = getattr(owner, "tp_size", getattr(owner, "moe_tp_size", 1))
    return rank if size > 1 else 0
