"""Server settings under which captured states would be wrong or missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hs_server.capture.errors import CaptureRefused

__all__ = ["GUARDS", "Guard", "check_settings"]


@dataclass(frozen=True, slots=True)
class Guard:
    """Where `bad(value)` of a server argument holds, the capture must not run, for `reason`; `remedy` is what to do."""

    argument: str
    bad: Callable[[Any], bool]
    reason: str
    remedy: str


def _more_than_one(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def _off(value: Any) -> bool:
    return not value


GUARDS: tuple[Guard, ...] = (
    Guard(
        "disable_radix_cache",
        _off,
        "with the radix cache on, tokens of a cached prefix never pass the model",
        "launch with --disable-radix-cache",
    ),
    Guard("pp_size", _more_than_one, "a pipeline stage sees its own layers only", "launch with --pp-size 1"),
    Guard(
        "enable_two_batch_overlap",
        bool,
        "two-batch overlap runs most layers without the capture",
        "drop --enable-two-batch-overlap",
    ),
    Guard(
        "speculative_algorithm",
        bool,
        "speculative decoding verifies in batches that look like prefill",
        "drop --speculative-algorithm",
    ),
    Guard(
        "enable_mixed_chunk",
        bool,
        "mixed chunks put decode rows among the prefill rows",
        "drop --enable-mixed-chunk",
    ),
    Guard(
        "enable_attn_tp_input_scattered",
        bool,
        "each attention-TP rank holds a slice of the tokens",
        "drop --enable-attn-tp-input-scattered",
    ),
    Guard("enable_layernorm_sp", bool, "sequence-parallel LayerNorm shards the rows", "drop --enable-layernorm-sp"),
    Guard(
        "enable_dp_attention",
        bool,
        "attention DP is not supported by the capture yet",
        "drop --enable-dp-attention and launch one server a replica",
    ),
    Guard(  # what replaces it from 0.5.23 on
        "attn_dp_size",
        _more_than_one,
        "attention DP is not supported by the capture yet",
        "drop --attn-dp-size and launch one server a replica",
    ),
    Guard(
        "attn_cp_size", _more_than_one, "prefill context parallelism shards the rows", "launch with --attn-cp-size 1"
    ),
    Guard(
        "allow_auto_truncate",
        bool,
        "prompts would be cut without a word",
        "drop --allow-auto-truncate",
    ),
    Guard("dp_size", _more_than_one, "replicas behind one port are not supported yet", "launch one server a replica"),
)


def check_settings(server_args: Any) -> None:
    """Compare SGLang's resolved arguments with `GUARDS`; an argument this version does not have is not in use.

    Raises:
        CaptureRefused: names the first setting that is unsafe, why, and the remedy.
    """
    for guard in GUARDS:
        if not hasattr(server_args, guard.argument):
            continue
        value = getattr(server_args, guard.argument)
        if guard.bad(value):
            raise CaptureRefused(f"{guard.argument}={value}: {guard.reason}; {guard.remedy}")
