"""How each family of SGLang models is told which boundaries to capture. The only place that knows.

The list is set on the inner model and the flag on its CausalLM directly. ``set_eagle3_layers_to_capture`` of the outer
classes is never used: whether it adds 1 depends on the SGLang version and on the ids (sgl-project/sglang pull 25454).
A class is in the table when its source was read: entry b must mean the residual stream that enters layer b. Others
have an attribute of the same name, and some count otherwise (Nanbeige: each pass of its looped layers), so that what an
attribute is called proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hs_server.capture.errors import CaptureRefused

__all__ = [
    "FAMILIES",
    "FUSION_OFF",
    "MODELS_PACKAGE",
    "WRAPPERS",
    "Family",
    "arm_model",
    "check_reduction",
    "decoder_layers",
    "family_of",
    "family_of_architectures",
    "source_architectures",
]

MODELS_PACKAGE = "sglang.srt.models"

Version = tuple[int, int, int]
_ALWAYS: Version = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Family:
    """Models that are flagged in one way.

    Attributes:
        name: for people.
        classes: CausalLM classes as ``file.Class`` below `MODELS_PACKAGE`. The others inherit the first one's
            constructor and forward unchanged.
        inner: class of the first one's ``model``, in the same file or imported there.
        flag: ``list``: ``layers_to_capture`` is all there is. ``setter``: the layers are marked too, by the inner
            model's ``set_eagle3_layers_to_capture``, which takes the ids as they are.
        reduced_since: first SGLang version that captures behind the all-reduce even where that is fused into the next
            layer's norm; before, each TP rank gets its own partial sum.
    """

    name: str
    classes: tuple[str, ...]
    inner: str
    flag: Literal["list", "setter"] = "list"
    reduced_since: Version = _ALWAYS


FAMILIES: tuple[Family, ...] = (
    Family(
        "DeepSeek-V2/V3",
        (
            "deepseek_v2.DeepseekV2ForCausalLM",
            "deepseek_v2.DeepseekV3ForCausalLM",
            "deepseek_v2.DeepseekV32ForCausalLM",
            "glm4_moe.GlmMoeDsaForCausalLM",
        ),
        inner="DeepseekV2Model",
        reduced_since=(0, 5, 14),
    ),
    Family(
        "Llama",
        (
            "llama.LlamaForCausalLM",
            "llama.Phi3ForCausalLM",
            "llama.InternLM3ForCausalLM",
            "mistral.MistralForCausalLM",
        ),
        inner="LlamaModel",
    ),
    Family("Qwen2", ("qwen2.Qwen2ForCausalLM",), inner="Qwen2Model"),
    Family("Qwen3", ("qwen3.Qwen3ForCausalLM",), inner="Qwen3Model"),
    Family("Qwen2-MoE", ("qwen2_moe.Qwen2MoeForCausalLM",), inner="Qwen2MoeModel", flag="setter"),
    Family("Qwen3-MoE", ("qwen3_moe.Qwen3MoeForCausalLM",), inner="Qwen3MoeModel", flag="setter"),
    # Looks behind each layer, for b - 1, instead of before it: the same for 0 < b < L.
    Family("gpt-oss", ("gpt_oss.GptOssForCausalLM",), inner="GptOssModel", reduced_since=(0, 5, 23)),
    Family("GLM-4-MoE", ("glm4_moe.Glm4MoeForCausalLM",), inner="Glm4MoeModel", reduced_since=(0, 5, 23)),
)

WRAPPERS: dict[str, str] = {
    "kimi_k25.KimiK25ForConditionalGeneration": "Kimi-K2.5",
    "kimi_vl.KimiVLForConditionalGeneration": "Kimi-VL",
}
"""Multimodal classes whose ``language_model`` is a CausalLM of `FAMILIES` that is called whole, and their names."""

FUSION_OFF = "--enforce-disable-flashinfer-allreduce-fusion"
_FUSION_OFF_SINCE: Version = (0, 5, 10)

_INNER_SETTER = "set_eagle3_layers_to_capture"


def source_architectures() -> frozenset[str]:
    """Names, as in a model's config, of the classes that run the file which `hs-server patch` is for."""
    return frozenset(name.rpartition(".")[2] for name in (*FAMILIES[0].classes, *WRAPPERS))


def family_of_architectures(architectures: Sequence[str]) -> Family | None:
    """The family that a model's config names, so far as it can be told without loading the model.

    A wrapper's language model is a DeepSeek.
    """
    if source_architectures().intersection(architectures):
        return FAMILIES[0]
    for family in FAMILIES:
        if any(name.rpartition(".")[2] in architectures for name in family.classes):
            return family
    return None


def family_of(model: Any) -> Family:
    """The family of `model`, a loaded model of SGLang or of a wrapper.

    Raises:
        CaptureRefused: it is in none; names the class and the families.
    """
    name = _name(_causal_lm(model))
    for family in FAMILIES:
        if name in family.classes:
            return family
    known = ", ".join([*(family.name for family in FAMILIES), *WRAPPERS.values()])
    raise CaptureRefused(
        f"what {type(model).__module__}.{type(model).__name__} captures is not known to be the stream entering a "
        f"layer; known are {known}; serve it with --no-capture"
    )


def arm_model(model: Any, boundaries: tuple[int, ...]) -> None:
    """Make `model`'s forward hand (post-norm states, aux states) to its logits processor.

    Raises:
        CaptureRefused: the model is in none of `FAMILIES`, or this SGLang version flags it otherwise.
    """
    family = family_of(model)
    causal = _causal_lm(model)
    inner = causal.model
    setter = getattr(inner, _INNER_SETTER, None)
    if (
        not hasattr(inner, "layers_to_capture")
        or not hasattr(causal, "capture_aux_hidden_states")
        or (setter is not None) != (family.flag == "setter")
    ):
        raise CaptureRefused(
            f"{type(causal).__name__} of this SGLang version is not told what to capture as that of 0.5.20 is; "
            "use a version that the documentation names"
        )
    if setter is not None:
        setter(list(boundaries))
    else:
        inner.layers_to_capture = list(boundaries)
    causal.capture_aux_hidden_states = True


def check_reduction(model: Any, server_args: Any, *, tp_size: int, sglang_version: str) -> None:
    """See that every TP rank will capture whole sums, not its own summand.

    Raises:
        CaptureRefused: an all-reduce is fused into the next layer's norm, behind the capture; says how to have it off.
    """
    family = family_of(model)
    fused = [
        name
        for name in (
            "flashinfer_allreduce_fusion_backend",
            "enable_flashinfer_allreduce_fusion",
            "enable_aiter_allreduce_fusion",
        )
        if getattr(server_args, name, None)
    ]
    if tp_size > 1 and fused and _version(sglang_version) < family.reduced_since:
        since = ".".join(map(str, family.reduced_since))
        remedy = f"launch with {FUSION_OFF}"
        if _version(sglang_version) < _FUSION_OFF_SINCE:
            remedy = f"use SGLang 0.5.10 or newer, which has {FUSION_OFF}, or --tp-size 1"
        raise CaptureRefused(
            f"{fused[0]}={getattr(server_args, fused[0])}: before SGLang {since}, {family.name} captures each TP "
            "rank's part of a sum where the all-reduce is fused; "
            f"{remedy}"
        )


def decoder_layers(model: Any) -> list[Any]:
    """The decoder layers of `model`, a model that `arm_model` has taken, in order."""
    return list(getattr(_causal_lm(model).model, "layers", ()))


def _causal_lm(model: Any) -> Any:
    return model.language_model if _name(model) in WRAPPERS else model


def _name(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__name__}".removeprefix(MODELS_PACKAGE + ".")


def _version(text: str) -> Version:
    """Of a version that says nothing, the lowest: then nothing is taken for granted."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else _ALWAYS
