"""How each family of SGLang models is told which boundaries to capture. The only place that knows.

The list is set on the inner model and the flag on its CausalLM directly. ``set_eagle3_layers_to_capture`` of the outer
classes is never used: whether it adds 1 depends on the SGLang version and on the ids (sgl-project/sglang pull 25454).
"""

from __future__ import annotations

from typing import Any

from hs_server.capture.errors import CaptureRefused

__all__ = ["arm_model", "causal_lm"]

_INNER_SETTER = "set_eagle3_layers_to_capture"


def causal_lm(model: Any) -> Any:
    """The text model's CausalLM: the model itself, or the ``language_model`` of a multimodal wrapper (Kimi-K2.5)."""
    return getattr(model, "language_model", model)


def arm_model(model: Any, boundaries: tuple[int, ...]) -> None:
    """Make `model`'s forward hand (post-norm states, aux states) to its logits processor.

    Raises:
        CaptureRefused: the model class has no auxiliary hidden states.
    """
    causal = causal_lm(model)
    inner = getattr(causal, "model", None)
    if inner is None or not hasattr(inner, "layers_to_capture") or not hasattr(causal, "capture_aux_hidden_states"):
        raise CaptureRefused(
            f"{type(model).__name__} has no auxiliary hidden states in this SGLang version; "
            "use a model whose class has layers_to_capture "
            "(Llama, Qwen2/3, DeepSeek-V2/V3, Kimi-K2.5, GLM-4-MoE, gpt-oss, ...)"
        )
    setter = getattr(inner, _INNER_SETTER, None)
    if (
        setter is not None
    ):  # qwen2_moe, qwen3_moe, qwen3_next: each layer is flagged as well; the ids are taken as they are
        setter(list(boundaries))
    else:
        inner.layers_to_capture = list(boundaries)
    causal.capture_aux_hidden_states = True
