"""What differs between SGLang versions, as far as a launch must know it. The only table of its kind.

Read from the sources of the versions in `READ`; a test holds the flags against six of them. A version in between
behaves as its neighbours do, a newer one as the newest: it gets plugin mode, and the canary of `hs-server doctor`
decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FLAGS", "READ", "Flag", "Number", "Release", "release"]

Number = tuple[int, int, int]

READ: tuple[str, ...] = (
    *("0.5.9", "0.5.10.post1", "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18"),
    *("0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)

_NEVER: Number = (999, 0, 0)

_FIRST: Number = (0, 5, 9)
_NEWEST: Number = (0, 5, 23)
_PLUGINS: Number = (0, 5, 11)


@dataclass(frozen=True, slots=True)
class Flag:
    """An argument of SGLang's that not every version has.

    Attributes:
        name: the flag.
        effect: what it does, for people.
        since: the first version that takes it.
        before: the first later version that does not any more.
        instead: what a version that lacks it has.
    """

    name: str
    effect: str
    since: Number = _FIRST
    before: Number = _NEVER
    instead: str = ""

    def known_to(self, number: Number) -> bool:
        """Whether version `number` takes it."""
        return self.since <= number < self.before

    def versions(self) -> str:
        """The versions that take it, for people."""
        if self.before == _NEVER:
            return f"from {_text(self.since)} on"
        return f"from {_text(self.since)} to before {_text(self.before)}"


FLAGS: tuple[Flag, ...] = (
    Flag(
        "--disable-cuda-graph",
        "before 0.5.14 decode graphs off, prefill graphs untouched; from 0.5.14 on both off, deprecated",
    ),
    Flag(
        "--disable-piecewise-cuda-graph",
        "prefill graphs off; from 0.5.14 on another name of --cuda-graph-backend-prefill disabled",
        since=(0, 5, 10),
        before=(0, 5, 20),
        instead="before 0.5.10 prefill graphs are off anyway; from 0.5.14 on: --disable-prefill-cuda-graph",
    ),
    Flag(
        "--enable-piecewise-cuda-graph",
        "prefill graphs on; from 0.5.10 on they are by default, and the flag does nothing",
        before=(0, 5, 14),
        instead="from 0.5.14 on: --cuda-graph-backend-prefill",
    ),
    Flag(
        "--enforce-piecewise-cuda-graph",
        "prefill graphs on against SGLang's own judgement",
        since=(0, 5, 10),
        before=(0, 5, 20),
        instead="from 0.5.14 on: --cuda-graph-backend-prefill",
    ),
    Flag(
        "--disable-prefill-cuda-graph",
        "prefill graphs off, decode graphs untouched",
        since=(0, 5, 14),
        instead="before 0.5.14: --disable-piecewise-cuda-graph",
    ),
    Flag(
        "--disable-decode-cuda-graph",
        "decode graphs off, prefill graphs untouched",
        since=(0, 5, 14),
        instead="before 0.5.14: --disable-cuda-graph",
    ),
    Flag("--cuda-graph-backend-prefill", "how prefill graphs are made, or disabled", since=(0, 5, 14)),
    Flag("--cuda-graph-config", "everything about graphs, as JSON", since=(0, 5, 14)),
    Flag(
        "--enforce-disable-flashinfer-allreduce-fusion",
        "no all-reduce fused into the next layer's norm",
        since=(0, 5, 10),
    ),
    Flag("--enable-layernorm-sp", "rows of the norms sharded over ranks; refused by the capture", since=(0, 5, 19)),
    Flag(
        "--attn-dp-size",
        "attention data parallelism; refused by the capture",
        since=(0, 5, 22),
        instead="before 0.5.22: --enable-dp-attention",
    ),
    Flag("--enable-return-aux-hidden-states", "SGLang's own capture, not used here", since=(0, 5, 23)),
)


@dataclass(frozen=True, slots=True)
class Release:
    """One SGLang version. `number` is None where its text says nothing: it is then taken for the newest."""

    text: str
    number: Number | None

    @property
    def assumed(self) -> Number:
        """The version to behave as."""
        return _NEWEST if self.number is None else self.number

    @property
    def plugins(self) -> bool:
        """Whether it loads plugins."""
        return self.assumed >= _PLUGINS

    @property
    def main_module(self) -> str:
        """What ``python -m`` runs: SGLang's own, or ours that brings the plugins where SGLang loads none."""
        return "sglang.launch_server" if self.plugins else "hs_server.sglang_main"

    @property
    def too_old(self) -> bool:
        """Whether it is older than any that was read."""
        return self.assumed < _FIRST

    @property
    def unread(self) -> str:
        """Why nothing is known of it for sure, for people; empty where it is."""
        if self.number is None:
            return f"SGLang {self.text} does not say its version; it is taken for {_text(_NEWEST)}"
        if self.number > _NEWEST:
            return f"SGLang {self.text} is newer than {_text(_NEWEST)}, the newest that was looked at"
        return ""

    @property
    def prefill_graphs_off(self) -> tuple[tuple[str, str | None], ...]:
        """The flags, with their values, that keep every prefill graph off and decode graphs as they are."""
        for name in ("--disable-prefill-cuda-graph", "--disable-piecewise-cuda-graph"):
            if self.takes(name):
                return ((name, None),)
        return ()  # off by default, and on only by --enable-piecewise-cuda-graph

    @property
    def prefill_graph_flags(self) -> tuple[str, ...]:
        """Flags that may turn prefill graphs on."""
        on = (
            *("--enable-piecewise-cuda-graph", "--enforce-piecewise-cuda-graph"),
            *("--cuda-graph-backend-prefill", "--cuda-graph-config"),
        )
        return tuple(name for name in on if self.takes(name))

    def takes(self, name: str) -> bool:
        """Whether it takes the flag `name`; of flags that are not in the table nothing is known, so yes."""
        flag = _BY_NAME.get(name)
        return flag is None or flag.known_to(self.assumed)

    def missing(self, name: str) -> Flag | None:
        """The flag `name` where this version is known not to take it."""
        return None if self.number is None or self.number > _NEWEST or self.takes(name) else _BY_NAME[name]


_BY_NAME = {flag.name: flag for flag in FLAGS}


def release(text: str) -> Release:
    """The version that `text` names, such as 0.5.10.post1 or 0.5.21rc2; local and development builds say nothing."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?!\d)", text)
    number = (int(found[1]), int(found[2]), int(found[3])) if found else None
    return Release(text, None if number == (0, 0, 0) else number)


def _text(number: Number) -> str:
    return ".".join(map(str, number))
