"""Server settings under which captured states would be wrong or missing.

The capture asks SGLang's resolved arguments when it starts, the doctor those of a running server. Standard library
only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hs_server.capture.errors import CaptureRefused
from hs_server.capture.mode import SOURCE

__all__ = ["GUARDS", "Guard", "Unsafe", "check_settings", "prefill_graphs", "unsafe_settings"]

_GRAPH_ARGUMENTS = ("device", "cuda_graph_config", "disable_piecewise_cuda_graph", "enable_piecewise_cuda_graph")


@dataclass(frozen=True, slots=True)
class Guard:
    """Where `bad(value)` of a server argument holds, the capture must not run, for `reason`; `remedy` is what to do."""

    argument: str
    bad: Callable[[Any], bool]
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Unsafe:
    """A setting that was found to be unsafe."""

    argument: str
    value: Any
    reason: str
    remedy: str


def _more_than_one(value: Any) -> bool:
    return isinstance(value, int) and value > 1


def _off(value: Any) -> bool:
    return not value


def _disaggregated(value: Any) -> bool:
    return value not in (None, "null")


def _several_samples(value: Any) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return isinstance(value, dict) and _more_than_one(value.get("n"))


_ABSENT = object()

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
    Guard("enable_prefill_cp", bool, "prefill context parallelism shards the rows", "drop --enable-prefill-cp"),
    Guard("dcp_size", _more_than_one, "decode context parallelism was never tried with it", "launch with --dcp-size 1"),
    Guard(
        "allow_auto_truncate",
        bool,
        "prompts would be cut without a word",
        "drop --allow-auto-truncate",
    ),
    Guard(
        "preferred_sampling_params",
        _several_samples,
        "with n > 1 SGLang gives requests other ids, so that their rows belong to nobody",
        "drop n from --preferred-sampling-params",
    ),
    Guard(
        "disaggregation_mode",
        _disaggregated,
        "a prefill or decode server of its own runs other batches than those the capture looks at",
        "drop --disaggregation-mode",
    ),
    Guard("enable_pdmux", bool, "prefill is split over batches the capture does not look at", "drop --enable-pdmux"),
    Guard("dllm_algorithm", bool, "diffusion models prefill in batches of another kind", "drop --dllm-algorithm"),
    Guard(
        "enable_return_aux_hidden_states",
        bool,
        "SGLang's own capture sets the model's layers after this one has",
        "drop --enable-return-aux-hidden-states",
    ),
    Guard("dp_size", _more_than_one, "replicas behind one port are not supported yet", "launch one server a replica"),
)


def prefill_graphs(settings: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The argument, and its value, by which prefill runs from graphs; None where it does not.

    From SGLang 0.5.14 on there is a backend for each phase (``srt/model_executor/cuda_graph_config.py``); from 0.5.10
    on prefill graphs were there unless turned off, before that unless turned on.
    """
    if settings.get("device") == "cpu":
        return None
    config = settings.get("cuda_graph_config")
    if config is not None:
        phase = _get(config, "prefill")
        backend = _get(phase, "backend") or "the default"
        return None if backend == "disabled" else ("cuda_graph_config.prefill.backend", backend)
    if "disable_piecewise_cuda_graph" in settings:
        return None if settings["disable_piecewise_cuda_graph"] else ("disable_piecewise_cuda_graph", False)
    return ("enable_piecewise_cuda_graph", True) if settings.get("enable_piecewise_cuda_graph") else None


def _get(owner: Any, name: str) -> Any:
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def unsafe_settings(settings: Mapping[str, Any], *, mode: str) -> list[Unsafe]:
    """Which of `GUARDS`, and in source mode which prefill graphs, speak against `settings`.

    Args:
        settings: SGLang's resolved arguments by name, as ``/server_info`` gives them; one that is not there is not in
            use.
        mode: of the capture.
    """
    found: list[Unsafe] = []
    for guard in GUARDS:
        value = settings.get(guard.argument, _ABSENT)
        if value is not _ABSENT and guard.bad(value):
            found.append(Unsafe(guard.argument, value, guard.reason, guard.remedy))
    if mode == SOURCE and (graphs := prefill_graphs(settings)) is not None:
        found.append(
            Unsafe(
                *graphs,
                "source mode was proved right with every prefill graph off, and only so",
                "launch with --disable-prefill-cuda-graph (before SGLang 0.5.14 --disable-piecewise-cuda-graph), or"
                " with --capture-mode plugin",
            )
        )
    return found


def check_settings(server_args: Any, *, mode: str) -> None:
    """Compare SGLang's resolved arguments with what `unsafe_settings` knows.

    Raises:
        CaptureRefused: names the first setting that is unsafe, why, and the remedy.
    """
    names = [*(guard.argument for guard in GUARDS), *_GRAPH_ARGUMENTS]
    settings = {name: getattr(server_args, name) for name in names if hasattr(server_args, name)}
    for unsafe in unsafe_settings(settings, mode=mode):
        raise CaptureRefused(f"{unsafe.argument}={unsafe.value}: {unsafe.reason}; {unsafe.remedy}")
