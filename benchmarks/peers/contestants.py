"""Who takes part, and where one cannot: each way to get hidden states of prompts as files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.peers.cells import MOST_TOKENS_IN_FLIGHT
from benchmarks.serving import Plugin, Target

__all__ = ["BASELINE", "CONTESTANTS", "Contestant", "absent"]

Kind = Literal["server", "loop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A way to get states.

    Attributes:
        says: what it is, for the table.
        kind: a server that is sent requests, or a loop over prompts in one process.
        plugin: of the server.
        graphs: CUDA graphs on, SGLang's default.
        options: of `hs-server launch`.
        arguments: of SGLang.
        over_http: states come in the answers, and the client writes them.
        gz: a loop writes ``.ckpt.gz`` instead of ``.pt``.
        share: of a block's tokens that slow ones get.
        most_tokens: in flight; cells with more are left out.
    """

    name: str
    says: str
    kind: Kind = "server"
    plugin: Plugin = "none"
    graphs: bool = True
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    over_http: bool = False
    gz: bool = False
    share: float = 1.0
    most_tokens: int = MOST_TOKENS_IN_FLIGHT

    @property
    def captures(self) -> bool:
        """Its server writes parts."""
        return self.plugin == "capture"

    @property
    def source(self) -> bool:
        """Its server's SGLang is patched."""
        return "source" in self.options


BASELINE = "nothing"

CONTESTANTS: dict[str, Contestant] = {
    one.name: one
    # In the order of their worth, should time run out.
    for one in (
        Contestant(name=BASELINE, says="SGLang, no plugin, no states kept: the ceiling"),
        Contestant(name="capture", says="SGLang with the capture, graphs on", plugin="capture"),
        Contestant(
            name="http",
            says="SGLang's return_hidden_states over HTTP (last state only), torch.save",
            arguments=("--enable-return-hidden-states",),
            over_http=True,
            share=0.1,
            most_tokens=16_000,  # a token is 40 kB of JSON, which server and client both hold
        ),
        Contestant(name="transformers-pt", says="transformers, one prompt at a time, torch.save", kind="loop"),
        Contestant(
            name="transformers-gz",
            says="the same, files as SpecForge writes them (.ckpt.gz)",
            kind="loop",
            gz=True,
            share=0.1,
        ),
        Contestant(
            name="capture-spread",
            says="SGLang with the capture, all ranks write a share",
            plugin="capture",
            options=("--writers", "spread"),
        ),
        Contestant(
            name="source",
            says="SGLang patched (source mode), prefill graphs off",
            plugin="capture",
            options=("--capture-mode", "source"),
        ),
        Contestant(
            name="capture-eager",
            says="SGLang with the capture, graphs off",
            plugin="capture",
            graphs=False,
            arguments=("--disable-cuda-graph",),
        ),
        Contestant(
            name="nothing-eager",
            says="SGLang, no plugin, graphs off",
            graphs=False,
            arguments=("--disable-cuda-graph",),
        ),
    )
}

_SOURCE_MODELS = ("deepseek", "kimi")


def absent(one: Contestant, target: Target, architecture: str) -> str:
    """Why `one` cannot take part with this target; "" where it can."""
    if not one.graphs and target.cpu:
        return "a CPU has no CUDA graphs: it is the same as with them"
    if "spread" in one.options and target.tp == 1:
        return "one rank has nothing to share: run it with --tp 2 or more"
    if one.source and not any(name in architecture.lower() for name in _SOURCE_MODELS):
        return f"the patch is for DeepSeek and Kimi models, this is {architecture}"
    if one.kind == "loop" and target.tp > 1:
        return "the loop runs on one device"
    return ""
