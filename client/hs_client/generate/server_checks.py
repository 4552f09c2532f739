"""What a server's settings mean for generation: what it cannot do, and what makes it slow. Pure logic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hs_client.generate.options import GenerateOptions
from hs_formats.errors import PreflightError

__all__ = ["check_generation", "generation_notes"]


def check_generation(info: Mapping[str, Any], options: GenerateOptions, *, url: str) -> None:
    """See that the server can do what is asked. `info`: its ``/server_info``; what it does not say is not held against
    it.

    Raises:
        PreflightError: it cannot.
    """
    if options.stop and info.get("skip_tokenizer_init"):
        raise PreflightError(
            f"the server at {url} runs with --skip-tokenizer-init and finds no --stop text in what it generates: launch"
            " it without, or leave --stop out"
        )
    if info.get("speculative_algorithm"):
        raise PreflightError(
            f"the server at {url} decodes speculatively ({info['speculative_algorithm']}), and what it captures would"
            " be wrong: launch it without --speculative-algorithm"
        )


def generation_notes(info: Mapping[str, Any], options: GenerateOptions, *, mode: str) -> Iterator[str]:
    """What the user should know about answers of this server; `mode`: how it captures, ``plugin`` or ``source``."""
    if str(info.get("device", "")).startswith("cpu"):
        yield "answers are generated on a CPU: slowly"
    elif info and decode_graphs_off(info):
        why = " (capture in source mode needs prefill graphs off only)" if mode == "source" else ""
        yield (
            f"decode CUDA graphs are off{why}, so that generating takes several times as long: launch the server"
            " without --disable-cuda-graph or --disable-decode-cuda-graph"
        )
    running = info.get("max_running_requests")
    if isinstance(running, int) and 0 < running < options.concurrency:
        yield f"the server decodes {running} requests at once, so that --generate-concurrency above that only waits"
    if options.temperature > 0 and not info.get("enable_deterministic_inference"):
        yield (
            "the server samples without regard to seeds, so that --seed does not bring the same answers again: that"
            " needs --enable-deterministic-inference"
        )
    if info.get("preferred_sampling_params"):
        yield "the server's --preferred-sampling-params do not apply: answers follow the options of this command"


def decode_graphs_off(info: Mapping[str, Any]) -> bool:
    """Decoding runs without CUDA graphs, as far as the server says."""
    config = info.get("cuda_graph_config")
    decode = config.get("decode") if isinstance(config, dict) else None
    if isinstance(decode, dict) and decode.get("backend") is not None:
        return bool(decode["backend"] == "disabled")
    return bool(info.get("disable_cuda_graph"))
