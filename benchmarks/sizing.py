"""Hours, terabytes and cores for a number of samples of a large model, computed from rates that were measured.

Nothing here was run at that size. Every figure of the table follows from the assumptions above it and from the result
files that it names, by the arithmetic below. Pure but for `newest_sources` and `read_sources`.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.mover.report import rates
from benchmarks.results import RESULTS, latest, load

__all__ = [
    "KIMI",
    "Estimate",
    "Model",
    "Plan",
    "Rates",
    "Sources",
    "assumptions",
    "estimate",
    "grid",
    "named",
    "newest_sources",
    "read_sources",
    "sizing_text",
    "wrapped",
]

_CASES = ("throughput", "mover", "client")
_ACTIVE_BILLIONS = {"llama8b": 8.0, "dsv2lite": 2.4}
"""Parameters that a token meets, of the models whose prefill was measured, by label."""

_PART = "90 MB"
_ARM = "hs-mover default"
_CLIENT_ARM = "asyncio 64 ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What counts of a model: `slots` captured states of `hidden` values of two bytes a token."""

    name: str
    hidden: int
    slots: int
    active_billions: float

    @property
    def token_bytes(self) -> int:
        """Bytes of states a token."""
        return 2 * self.hidden * self.slots


KIMI = Model(name="Kimi-K2.5", hidden=7168, slots=4, active_billions=32.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is assumed: tokens of a sample on average, GPUs, and what is left of their speed when they work together."""

    tokens: int = 4096
    gpus: int = 8
    together: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What was measured.

    Attributes:
        prefill: tokens/s of one GPU times billions of active parameters, by model.
        capture: the share of it that the capture leaves, by model.
        writer_bytes_s: what one rank was seen to write.
        mover_bytes_core_s: states that the mover takes in a second of a core.
        stored_share: bytes on disk a byte of states.
        client_request_s: of a core, for a request.
    """

    prefill: Mapping[str, float]
    capture: Mapping[str, float]
    writer_bytes_s: float
    mover_bytes_core_s: float
    stored_share: float
    client_request_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """For one number of samples at one prefill rate; `cores` are busy on average while the run lasts."""

    hours: float
    raw_tb: float
    stored_tb: float
    states_bytes_s: float
    mover_cores: float
    disk_bytes_s: float
    client_cores: float


Sources = Mapping[str, Sequence[str]]
"""Names of result files by case."""


def estimate(model: Model, plan: Plan, measured: Rates, *, samples: int, of: str) -> Estimate:
    """`of`: the measured model whose prefill is scaled by active parameters."""
    tokens_s = measured.prefill[of] * measured.capture[of] / model.active_billions * plan.gpus * plan.together
    raw = float(samples * plan.tokens * model.token_bytes)
    states = tokens_s * model.token_bytes
    return Estimate(
        hours=samples * plan.tokens / tokens_s / 3600,
        raw_tb=raw / 1e12,
        stored_tb=raw * measured.stored_share / 1e12,
        states_bytes_s=states,
        mover_cores=states / measured.mover_bytes_core_s,
        disk_bytes_s=states * measured.stored_share,
        client_cores=tokens_s / plan.tokens * measured.client_request_s,
    )


def newest_sources(folder: Path = RESULTS) -> Sources:
    """The newest valid results that rates are taken from."""
    return {case: [path.name for path, record in latest(case, folder) if _useful(record)] for case in _CASES}


def _useful(record: Mapping[str, Any]) -> bool:
    return record["case"] != "throughput" or (
        record["label"] in _ACTIVE_BILLIONS and len(record["machine"]["gpus"]) == 1 and "total_ratio" in record
    )


def read_sources(sources: Sources, folder: Path = RESULTS) -> Rates:
    """The rates in these result files.

    Raises:
        OSError: one is missing.
        KeyError: one has not measured what is asked of it.
    """
    found = {case: [load(folder / case / name) for name in names] for case, names in sources.items()}
    prefill: dict[str, float] = {}
    capture: dict[str, float] = {}
    writer = 0.0
    for record in found["throughput"]:
        label = str(record["label"])
        prefill[label] = statistics.median(record["arms"]["on-none"]["foreign"]) * _ACTIVE_BILLIONS[label]
        capture[label] = min(1.0, float(record["total_ratio"]["value"]))
        writer = max(writer, statistics.median(record["arms"]["on-capture"]["scratch_bytes_per_s"]))
    (mover,) = found["mover"][-1:]
    moved = mover["timings"][_PART]
    (client,) = found["client"][-1:]
    return Rates(
        prefill=prefill,
        capture=capture,
        writer_bytes_s=writer,
        mover_bytes_core_s=statistics.median(rates(moved, _ARM, "raw_bytes", "cpu_s")),
        stored_share=statistics.median(one["stored_bytes"] / one["raw_bytes"] for one in moved[_ARM]),
        client_request_s=float(client["arms"][_CLIENT_ARM]["cpu_us"]) / 1e6,
    )


def sizing_text(
    sources: Sources, measured: Rates, *, model: Model = KIMI, plan: Plan | None = None,
    samples: Sequence[int] = (10_000, 1_000_000),
) -> str:  # fmt: skip
    """The table as Markdown, with its assumptions and sources. Computed, not measured, and it says so."""
    plan = plan or Plan()
    assumed = "\n".join(wrapped(f"- {line};", "  ") for line in assumptions(model, plan, measured))
    start = f"**Computed, not measured**: no {model.name} was run for this."
    lines = [
        wrapped(f"{start} From the results {named(sources)}. Assumed:"),
        "",
        assumed.removesuffix(";") + ".",
        "",
    ]
    columns = [(count, of) for count in samples for of in measured.prefill]
    found = [estimate(model, plan, measured, samples=count, of=of) for count, of in columns]
    rows = {
        "hours of the server": [f"{one.hours:,.1f}" for one in found],
        "states, TB": [f"{one.raw_tb:,.1f}" for one in found],
        "on disk, TB": [f"{one.stored_tb:,.1f}" for one in found],
        "states into scratch, GB/s": [f"{one.states_bytes_s / 1e9:.2f}" for one in found],
        "cores for the mover": [f"{one.mover_cores:.1f}" for one in found],
        "disk, GB/s": [f"{one.disk_bytes_s / 1e9:.2f}" for one in found],
        "cores for the client": [f"{one.client_cores:.3f}" for one in found],
    }
    lines += grid([f"{count:,} samples, prefill as of {of}" for count, of in columns], rows)
    lines += ["", wrapped(_limits(max(one.states_bytes_s for one in found), measured))]
    return "\n".join(lines) + "\n"


def grid(heads: Sequence[str], rows: Mapping[str, Sequence[str]]) -> list[str]:
    """Lines of a Markdown table: a column for each of `heads`, a row of cells for each name."""
    top = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    return top + [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]


def named(sources: Sources) -> str:
    """The result files, for the text."""
    return "; ".join(f"{case}: {', '.join(f'`{name}`' for name in found)}" for case, found in sources.items())


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph in lines of the length that the documents have."""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def assumptions(model: Model, plan: Plan, measured: Rates) -> list[str]:
    """What `estimate` takes for granted, in sentences without their ends."""
    known = "Measured on one: " + ", ".join(
        f"{rate / _ACTIVE_BILLIONS[label]:,.0f} tokens/s of {label} ({_ACTIVE_BILLIONS[label]:g} billion; the capture"
        f" leaves {measured.capture[label]:.1%} of it)"
        for label, rate in measured.prefill.items()
    )
    mover_gb, client_us = measured.mover_bytes_core_s / 1e9, 1e6 * measured.client_request_s
    sample_mb = plan.tokens * model.token_bytes / 1e6
    size = f"hidden size {model.hidden:,} and {model.slots} states a token in bfloat16, the last one among them"
    doubt = "There is a column for each, and the truth may lie outside of both"
    scaled = f"and prefill goes down as the parameters that a token meets go up. {known}. {doubt}"
    billions = model.active_billions
    moved = f"the mover takes {mover_gb:.2f} GB of states a core-second (parts of {_PART})"
    return [
        f"{model.name} has {size}: {model.token_bytes:,} bytes; a token meets {billions:g} billion parameters",
        f"a sample has {plan.tokens:,} tokens on average, {sample_mb:,.0f} MB",
        f"{plan.gpus} H200 together reach {plan.together:.0%} of {plan.gpus} times the prefill of one, {scaled}",
        f"states compress as those that were measured, to {measured.stored_share:.1%}",
        f"{moved}, the client {client_us:,.0f} µs a request",
    ]


def _limits(states_bytes_s: float, measured: Rates) -> str:
    seen = f"the {measured.writer_bytes_s / 1e9:.2f} GB/s at which one rank was seen to write"
    asked = f"The fastest column asks {states_bytes_s / 1e9:.2f} GB/s of the writers"
    if states_bytes_s > measured.writer_bytes_s:
        asked += f", more than {seen}; `--writers spread` divides it over the ranks, which was not measured."
    else:
        asked += f", within {seen}."
    return f"{asked} Where the disk takes less than its row, the disk decides the hours."
