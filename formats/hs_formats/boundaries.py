"""Layer boundaries: which states are captured, and what every other project calls them.

Boundary b is the residual stream after b decoder layers: transformers' ``hidden_states[b]``, entry b of SGLang's
``layers_to_capture``, layer id b of vLLM and speculators, layer id b-1 of ModelOpt, AngelSlim, DeepSpec and DFlash. We
store b and never a converted number.

Standard library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hs_formats.errors import FormatError

__all__ = ["boundary_table", "default_boundaries", "parse_ids", "resolve_boundaries", "sglang_draft_ids"]

_ID = re.compile(r"-?[0-9]{1,9}", re.ASCII)


def parse_ids(text: str) -> tuple[int, ...]:
    """Integers of a comma-separated list such as ``3,31,59``.

    Raises:
        FormatError: an item is not a whole number, or there is none.
    """
    items = [item.strip() for item in text.split(",")]
    if not all(_ID.fullmatch(item) for item in items):  # int() would also take 1_0 and other alphabets' digits
        raise FormatError(f"{text!r} is not a comma-separated list of layer numbers such as 3,31,59")
    return tuple(int(item) for item in items)


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """``[2, L//2, L-3]``, the pick of today's EAGLE-3 trainers and of SGLang itself."""
    return (2, num_layers // 2, num_layers - 3)


def resolve_boundaries(
    num_layers: int, *, boundaries: Sequence[int] | None = None, eagle_ids: Sequence[int] | None = None
) -> tuple[int, ...]:
    """The ascending boundaries to capture for a model of `num_layers` decoder layers.

    `eagle_ids` are EAGLE-style ids of the layer whose *output* is meant, so 1 is added to each. With neither given the
    default pick is used.

    Raises:
        FormatError: both are given, none is left, or a pick is doubled or not in 1..L-1.
    """
    if boundaries is not None and eagle_ids is not None:
        raise FormatError("give boundaries or EAGLE layer ids, not both")
    if boundaries is not None:
        picked, origin = tuple(boundaries), "given"
    elif eagle_ids is not None:
        picked, origin = tuple(i + 1 for i in eagle_ids), f"from EAGLE ids {list(eagle_ids)}"
    else:
        picked, origin = default_boundaries(num_layers), "the default [2, L//2, L-3]"
    if not picked:
        raise FormatError("no boundary to capture")
    outside = [b for b in picked if not 0 < b < num_layers]
    if outside:
        raise FormatError(
            f"boundaries {list(picked)} ({origin}): {outside} not in 1..{num_layers - 1} "
            f"of a model of {num_layers} layers"
        )
    if len(set(picked)) != len(picked):
        raise FormatError(
            f"boundaries {list(picked)} ({origin}) name a layer twice (the model has {num_layers} layers)"
        )
    return tuple(sorted(picked))


def sglang_draft_ids(boundaries: Sequence[int], *, conditional: bool) -> list[int] | None:
    """``eagle_aux_hidden_state_layer_ids`` in a draft model's config that make SGLang capture `boundaries`, ascending.

    ``set_eagle3_layers_to_capture`` adds 1 to the config's ids for every model, except that ``deepseek_v2.py``
    (DeepSeek, Kimi) and ``glm4_moe_lite.py`` do so from 0.5.13 on only when the first id is 1: `conditional`. There no
    list means boundaries that begin with 1, and the result is None.
    """
    minus = [b - 1 for b in boundaries]
    if not conditional or boundaries[0] == 2:  # the list then starts with 1, so SGLang adds 1 back
        return minus
    return None if boundaries[0] == 1 else list(boundaries)


def boundary_table(boundaries: Sequence[int], num_layers: int) -> list[str]:
    """Lines that give `boundaries` in every numbering in use, and the draft-config lines they imply."""
    b = list(boundaries)
    minus = [x - 1 for x in b]
    newer = sglang_draft_ids(b, conditional=True) or "not expressible: ids that start with 1 get +1 there"
    return [
        f"boundaries of {num_layers} layers, and the last state after the final norm",
        f"  boundary b   {b}  transformers hidden_states[b], SGLang layers_to_capture, vLLM, speculators",
        f"  layer id b-1 {minus}  ModelOpt, AngelSlim, DeepSpec, DFlash, EAGLE ids",
        f"  draft config eagle_aux_hidden_state_layer_ids served by SGLang: {minus}",
        f"    except DeepSeek, Kimi and GLM-4-MoE-Lite from SGLang 0.5.13 on: {newer}",
    ]
