"""The layer ids that a draft model's config must name for the engine that will serve it.

The engine captures the target's states by these ids. A wrong one gives the draft model its neighbour's states: it
works, and fewer of its tokens are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hs_client.export.settings import Serving
from hs_formats.boundaries import sglang_draft_ids

__all__ = ["DraftIds", "draft_ids", "merged"]

_CONDITIONAL = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
    }
)
"""Classes of SGLang that go through ``deepseek_v2.py`` or ``glm4_moe_lite.py`` and share their rule."""

_RULE_CHANGED = (0, 5, 13)


@dataclass(frozen=True, slots=True)
class DraftIds:
    """What the draft model's config must say, and why; `ids` is None where no list says it."""

    ids: list[int] | None
    why: str
    nested: bool = True

    def config(self) -> dict[str, Any]:
        """The keys of the draft model's config; SGLang reads them below ``eagle_config``."""
        if self.ids is None:
            return {}
        named = {"eagle_aux_hidden_state_layer_ids": self.ids}
        return {"eagle_config": {"use_aux_hidden_state": True, **named}} if self.nested else named


def draft_ids(boundaries: Sequence[int], serving: Serving, architecture: str) -> DraftIds:
    """``eagle_aux_hidden_state_layer_ids`` that make `serving` capture `boundaries` of a target of this class."""
    if serving.engine == "vllm":
        return DraftIds(list(boundaries), "vLLM counts the layers that were run, as the boundaries do", nested=False)
    if architecture in _CONDITIONAL and serving.version >= _RULE_CHANGED:
        why = f"SGLang takes the ids of {architecture} as they are from 0.5.13 on, but adds 1 if the first one is 1"
        return DraftIds(sglang_draft_ids(boundaries, conditional=True), why)
    since = ", before 0.5.13 of this model too" if architecture in _CONDITIONAL else ""
    return DraftIds(sglang_draft_ids(boundaries, conditional=False), f"SGLang adds 1 to each id{since}")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, one level of nesting deep."""
    found = dict(base)
    for key, value in changes.items():
        known = found.get(key)
        found[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
    return found
