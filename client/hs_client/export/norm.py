"""The state before the final norm, from the stored one after it. Needs torch.

speculators stores x, the output of the last decoder layer, and applies the model's final norm itself. This project
stores y = x / rms(x) * g. RMSNorm does not change when its input is scaled, so y / g, whose RMS is 1, gives y again up
to rounding, for any norm that multiplies by a gain g. That is checked and not assumed: y / g must have RMS 1 in every
row, which it has not with the weights of another model, with (1 + w) taken for w, or after a LayerNorm with a bias; and
what the trainer's norm makes of each row is computed and compared with the stored row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from hs_client.export.errors import BadSample, NormUnsound

__all__ = [
    "GAINS",
    "MOST_ULPS",
    "TINY_GAIN",
    "PreNorm",
    "bf16_ulps",
    "model_gain",
    "rms_norm",
    "speculators_gain",
]

Gain = Literal["w", "1+w"]

_W = (
    "apertus deepseek_v2 deepseek_v3 dots1 ernie4_5 ernie4_5_moe exaone4 exaone_moe glm glm4 glm4_moe glm4_moe_lite"
    " glm_moe_dsa gpt_oss granite granitemoe hunyuan_v1_dense kimi_k2 llama llama4_text longcat_flash minimax"
    " minimax_m2 ministral mistral mixtral olmo2 olmo3 olmoe phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3"
)
_ONE_PLUS_W = (
    "gemma gemma2 gemma3 gemma3_text recurrent_gemma qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text"
)
_LAYER_NORM = "bloom cohere cohere2 falcon gpt2 gpt_neox nemotron opt phi phimoe stablelm starcoder2"

GAINS: Mapping[str, Gain] = {
    **dict.fromkeys(_W.split(), "w"),
    **dict.fromkeys(_ONE_PLUS_W.split(), "1+w"),
}
"""What the final RMSNorm multiplies by, by the ``model_type`` of the language model's config (transformers 5.12)."""

_SPECULATORS_ONE_PLUS_W = frozenset(
    ("gemma", "gemma2", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text", "recurrent_gemma")
)
"""Models whose (1 + w) speculators 0.9.0 knows of, in the trainers other than EAGLE-3's."""

TINY_GAIN = 2.0**-14
"""Gains below this are refused: there a stored state says nothing about the one before the norm."""

MOST_ULPS = 2
"""The trainer's norm of an exported row differs from the stored row by so many bf16 steps at most."""

_RMS_TOLERANCE = 2.0**-7
"""Rounding the largest state of a row to bf16 moves the row's RMS by half of this at most."""

_BLOCK_ROWS = 1024
_SCALES = tuple(1 + step / 32 for step in range(1, 32))


def model_gain(model_type: str) -> Gain:
    """What the final norm of a model of this type multiplies by.

    Raises:
        NormUnsound: it is a LayerNorm, or not known.
    """
    if model_type in GAINS:
        return GAINS[model_type]
    if model_type in _LAYER_NORM.split():
        raise NormUnsound(
            reason=f"a {model_type} model ends in a LayerNorm, whose mean and bias cannot be taken out again"
        )
    raise NormUnsound(
        reason=f"the final norm of a model of type {model_type!r} is not known to be an RMSNorm that multiplies by its"
        " weight"
    )


def speculators_gain(model_type: str, algorithm: str) -> Gain:
    """What speculators 0.9.0 multiplies by in its own copy of the final norm, for a draft of kind `algorithm`."""
    return "1+w" if algorithm != "eagle3" and model_type in _SPECULATORS_ONE_PLUS_W else "w"


def rms_norm(states: torch.Tensor, weight: torch.Tensor, eps: float, gain: Gain) -> torch.Tensor:
    """RMSNorm of `states` [rows, H] as transformers and the trainers compute it; result in the dtype of `states`."""
    wide = states.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    if gain == "1+w":
        return (wide * (1.0 + weight.float())).to(states.dtype)
    return (weight * wide.to(states.dtype)).to(states.dtype)


def bf16_ulps(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """How many bf16 values lie between `a` and `b`, after rounding both to bf16; int32 of their shape."""
    first, second = (_ordered(x.to(torch.bfloat16)) for x in (a, b))
    return (first - second).abs()


def _ordered(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@dataclass(frozen=True, slots=True)
class PreNorm:
    """Takes the final norm out of states.

    Args:
        weight: the norm's weight [H] as the checkpoint has it.
        eps: the norm's epsilon.
        gain: what the model's norm multiplies by.
        trainer_gain: what the trainer's norm multiplies by; has to be the same.

    Raises:
        NormUnsound: the trainer's norm is another one, or a gain is tiny or not finite.
    """

    weight: torch.Tensor
    eps: float
    gain: Gain
    trainer_gain: Gain

    def __post_init__(self) -> None:
        if self.trainer_gain != self.gain:
            raise NormUnsound(
                reason=f"the model's final norm multiplies by {self.gain}, and the trainer's copy of it by"
                f" {self.trainer_gain}, so that its targets would be wrong whatever is written"
            )
        gains = self.gains
        if not bool(torch.isfinite(gains).all()):
            raise NormUnsound(reason="a weight of the final norm is not finite")
        tiny = int((gains.abs() < TINY_GAIN).sum())
        if tiny:
            channel = int(gains.abs().argmin())
            raise NormUnsound(
                reason=f"the final norm multiplies {tiny} of {len(gains)} channels by less than {TINY_GAIN:.2g}"
                f" (channel {channel} by {float(gains[channel]):.3g}), and what they were before is lost"
            )

    @property
    def gains(self) -> torch.Tensor:
        """float32 [H]."""
        wide = self.weight.float()
        return 1.0 + wide if self.gain == "1+w" else wide

    def undo(self, sample_id: str, states: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
        """States [n, H] after the norm → states [n, H] in `dtype` that the trainer's norm turns into them.

        Returns:
            The states, and how many bf16 steps the worst of them is off after the trainer's norm.

        Raises:
            BadSample: a row cannot come from this norm with this weight, or is off by more than `MOST_ULPS`.
        """
        found = torch.empty(states.shape, dtype=dtype)
        worst = 0
        for start in range(0, len(states), _BLOCK_ROWS):
            rows = states[start : start + _BLOCK_ROWS]
            unit = rows.float() / self.gains
            self._check_rms(sample_id, unit, start)
            unit = _restore_largest(unit)
            best = unit.to(dtype)
            off = self._off(best, rows)
            for scale in _SCALES:
                bad = off > MOST_ULPS
                if not bool(bad.any()):
                    break
                other = (unit[bad] * scale).to(dtype)
                other_off = self._off(other, rows[bad])
                better = other_off < off[bad]
                at = bad.nonzero()[:, 0][better]
                best[at], off[at] = other[better], other_off[better]
            worst = max(worst, int(off.max()))
            if worst > MOST_ULPS:
                token = start + int(off.argmax())
                raise BadSample(
                    sample_id=sample_id,
                    reason=f"the trainer's norm of token {token} would be off by {worst} bf16 steps",
                )
            found[start : start + len(rows)] = best
        return found, worst

    def _check_rms(self, sample_id: str, unit: torch.Tensor, start: int) -> None:
        rms = unit.pow(2).mean(-1).sqrt()
        far = (rms - 1).abs()
        if not bool((far <= _RMS_TOLERANCE).all()):
            row = int(far.nan_to_num(nan=float("inf")).argmax())
            raise BadSample(
                sample_id=sample_id,
                reason=f"token {start + row}, divided by the weight of the model's final norm, has RMS"
                f" {float(rms[row]):.4g} instead of 1: the weight is another model's, or the norm is of another kind",
            )

    def _off(self, candidate: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        again = rms_norm(candidate, self.weight.to(candidate.dtype), self.eps, self.trainer_gain)
        return bf16_ulps(again, rows).amax(-1)


def _restore_largest(unit: torch.Tensor) -> torch.Tensor:
    """Give each row RMS 1 again by its largest state, which the rounding of the stored states has moved most.

    Only where it moves by less than that rounding can explain.
    """
    squares = unit.double().pow(2)
    largest = squares.argmax(-1, keepdim=True)
    was = squares.gather(-1, largest)
    wanted = unit.shape[-1] - (squares.sum(-1, keepdim=True) - was)
    ratio = torch.sqrt((wanted / was).clamp(min=0.25))
    ratio = torch.where((ratio - 1).abs() <= 2.0**-8, ratio, torch.ones_like(ratio))
    return unit.scatter(-1, largest, (unit.gather(-1, largest).double() * ratio).float())
