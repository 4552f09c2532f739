"""Nodes for a wanted time, and what they ask of the store and of each node, from the rates of one server.

Nothing here was run at that size. Every figure follows from the assumptions above the table and from the result files
that it names, by the arithmetic below. Pure but for `newest_store_sources` and `read_store_rate`.
"""

from __future__ import annotations

import inspect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.objectstore.report import rates
from benchmarks.results import RESULTS, latest, load
from benchmarks.sizing import KIMI, Model, Plan, Rates, Sources, assumptions, estimate, grid, named, wrapped
from hs_client.admission import RecordCost
from hs_formats.memory import default_reserve
from hs_mover.config import MoverConfig

__all__ = [
    "NODES",
    "STORE_CASE",
    "WITHIN_HOURS",
    "Cluster",
    "Need",
    "cluster_text",
    "need",
    "newest_store_sources",
    "nodes_within",
    "read_store_rate",
]

STORE_CASE = "objectstore"

WITHIN_HOURS: tuple[float, ...] = (24, 4)
NODES: tuple[int, ...] = (16,)

_STORE_PART = "60 MB"
_STORE_ARM = "hs-mover default"
_HIGH: float = inspect.signature(MoverConfig).parameters["high"].default


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What is assumed of each node beyond `Plan`.

    Attributes:
        start_hours: from the allocation until its server is ready.
        in_flight: requests to its server.
        pause_s: for so long its scratch shall take what the server writes, with nothing moved.
    """

    start_hours: float = 0.25
    in_flight: int = 64
    pause_s: float = 60.0


def newest_store_sources(folder: Path = RESULTS) -> Sources:
    """The newest valid result that `read_store_rate` takes."""
    return {STORE_CASE: [path.name for path, _ in latest(STORE_CASE, folder)][-1:]}


def read_store_rate(sources: Sources, folder: Path = RESULTS) -> float:
    """States that a mover takes in a second of a core when it sends them to an object store, in bytes.

    Raises:
        OSError: the result file is missing.
        KeyError: it has not measured that.
    """
    (name,) = sources[STORE_CASE]
    timings = load(folder / STORE_CASE / name)["timings"]
    return statistics.median(rates(timings[_STORE_PART], _STORE_ARM, "raw_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Of `nodes` side by side: `hours` from start to end, what all of them ask of the store, and what each needs.

    Attributes:
        files_s: new files or objects a second.
        node_object_cores: of the mover, where the destination is an object store.
    """

    nodes: int
    hours: float
    stored_tb: float
    store_bytes_s: float
    files_s: float
    node_states_bytes_s: float
    node_store_bytes_s: float
    node_mover_cores: float
    node_object_cores: float
    node_scratch_bytes: float


def nodes_within(
    hours: float, model: Model, plan: Plan, measured: Rates, *, samples: int, of: str, cluster: Cluster
) -> int:
    """The fewest nodes that are done within `hours`.

    Raises:
        ValueError: the servers are not even ready by then.
    """
    if hours <= cluster.start_hours:
        raise ValueError(f"{hours:g} hours are over before the servers are ready, after {cluster.start_hours:g}")
    return max(1, math.ceil(_server_hours(model, plan, measured, samples, of) / (hours - cluster.start_hours)))


def _server_hours(model: Model, plan: Plan, measured: Rates, samples: int, of: str) -> float:
    return estimate(model, plan, measured, samples=samples, of=of).hours


def need(
    nodes: int, model: Model, plan: Plan, measured: Rates, *,
    samples: int, of: str, cluster: Cluster, object_bytes_core_s: float,
) -> Need:  # fmt: skip
    """What `nodes` nodes take and need for `samples`, with the prefill of the measured model `of`.

    `object_bytes_core_s`: see `read_store_rate`.
    """
    one = estimate(model, plan, measured, samples=samples, of=of)
    record = RecordCost(model.token_bytes, copies=1, ranks=1, chunk_tokens=0).record(plan.tokens)
    fill = cluster.in_flight * record + cluster.pause_s * one.states_bytes_s
    return Need(
        nodes=nodes,
        hours=cluster.start_hours + one.hours / nodes,
        stored_tb=one.stored_tb,
        store_bytes_s=nodes * one.disk_bytes_s,
        files_s=nodes * one.states_bytes_s / (plan.tokens * model.token_bytes),
        node_states_bytes_s=one.states_bytes_s,
        node_store_bytes_s=one.disk_bytes_s,
        node_mover_cores=one.mover_cores,
        node_object_cores=one.states_bytes_s / object_bytes_core_s,
        node_scratch_bytes=_capacity(fill),
    )


def _capacity(fill_bytes: float) -> float:
    """Size of a /dev/shm of which clients may fill so much: the mover's mark, and the reserve for others."""
    capacity = fill_bytes / _HIGH
    return capacity + default_reserve(int(capacity), shared_memory_mount=True)


def cluster_text(
    sources: Sources, measured: Rates, object_bytes_core_s: float, *,
    model: Model = KIMI, plan: Plan | None = None, samples: int = 1_000_000,
    within: Sequence[float] = WITHIN_HOURS, nodes: Sequence[int] = NODES, cluster: Cluster | None = None,
) -> str:  # fmt: skip
    """The table as Markdown, with its assumptions and sources: columns for wanted hours, then for numbers of nodes.

    Raises:
        ValueError: as `nodes_within`.
    """
    plan, cluster = plan or Plan(), cluster or Cluster()
    wanted: list[tuple[str, str, int]] = []
    for of in measured.prefill:
        for hours in within:
            count = nodes_within(hours, model, plan, measured, samples=samples, of=of, cluster=cluster)
            wanted.append((f"within {hours:g} h", of, count))
        wanted += [(f"{count} nodes", of, count) for count in nodes]
    found = [
        need(
            count, model, plan, measured,
            samples=samples, of=of, cluster=cluster, object_bytes_core_s=object_bytes_core_s,
        )
        for _, of, count in wanted
    ]  # fmt: skip
    lines = [*assumptions(model, plan, measured), *_more_assumptions(model, plan, cluster, object_bytes_core_s)]
    text = [
        wrapped(
            f"**Computed, not measured**: {samples:,} samples of {model.name}, which nobody has run on several nodes."
            f" From the results {named(sources)}. Assumed:"
        ),
        "",
        "\n".join(wrapped(f"- {line};", "  ") for line in lines).removesuffix(";") + ".",
        "",
    ]
    rows = {
        f"nodes of {plan.gpus} GPUs": [f"{one.nodes}" for one in found],
        "hours": [f"{one.hours:.1f}" for one in found],
        "stored, TB": [f"{one.stored_tb:,.1f}" for one in found],
        "to the store from all nodes, GB/s": [f"{one.store_bytes_s / 1e9:.2f}" for one in found],
        "new files or objects a second": [f"{one.files_s:.1f}" for one in found],
        "each node: states into scratch, GB/s": [f"{one.node_states_bytes_s / 1e9:.2f}" for one in found],
        "each node: to the store, Gbit/s": [f"{8 * one.node_store_bytes_s / 1e9:.1f}" for one in found],
        "each node: cores for the mover": [f"{one.node_mover_cores:.1f}" for one in found],
        "… where it sends to an object store": [f"{one.node_object_cores:.1f}" for one in found],
        "each node: /dev/shm, GiB": [f"{one.node_scratch_bytes / (1 << 30):.0f}" for one in found],
    }
    text += grid([f"{head}, prefill as of {of}" for head, of, _ in wanted], rows)
    return "\n".join(text) + "\n"


def _more_assumptions(model: Model, plan: Plan, cluster: Cluster, object_bytes_core_s: float) -> list[str]:
    sample_mb, sent_gb = plan.tokens * model.token_bytes / 1e6, object_bytes_core_s / 1e9
    flight = f"{cluster.in_flight} requests of {sample_mb:,.0f} MB in flight"
    pause = f"{cluster.pause_s:.0f} s in which nothing is moved"
    limits = f"within the {_HIGH:.0%} that clients may fill, and beside the reserve for NCCL"
    return [
        f"a mover that sends to an object store takes {sent_gb:.2f} GB a core-second (parts of {_STORE_PART})",
        "nodes side by side are each as fast as one alone, and the store takes what its row says; neither was measured",
        f"a server is ready {60 * cluster.start_hours:.0f} minutes after its node was given, and nothing fails",
        f"scratch has room for {flight} and for {pause}, {limits}",
        "a sample is one file, as where the prefill chunk is longer than it",
    ]
