"""Results of the case ``mover`` as a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ON_JOURNAL", "SMALL", "STARTS", "plot", "rates", "ratio", "table"]

STARTS = {"start of hs-mover": "hs-mover default", "start of the loop": "the same, in groups"}
"""What is run on an empty scratch, and the arm that it is run with."""

SMALL = "0.1 MB"
"""The parts that the disk with a journal is tried with."""

_ZSTD = "zstd -1 -T2, mv"
_SINGLE = "one fsync per file"
_GROUPED = "the same, in groups"
_LOOPS = (_SINGLE, _GROUPED)
ON_JOURNAL = ("hs-mover default", "hs-mover none", *_LOOPS)
"""What is tried with them."""

Timings = Sequence[Mapping[str, Any]]


def rates(arms: Mapping[str, Timings], name: str, what: str, per: str) -> list[float]:
    """`what` per `per` in each round, such as ``raw_bytes`` per ``cpu_s``; without starts that are measured."""
    start = "start of hs-mover" if name.startswith("hs-mover") else "start of the loop" if name in _LOOPS else ""
    starts = [float(one[per]) for one in arms[start]] if start else [0.0] * len(arms[name])
    return [
        float(one[what]) / max(0.1 * one[per], one[per] - start) for one, start in zip(arms[name], starts, strict=True)
    ]


def ratio(arms: Mapping[str, Timings], ours: str, theirs: str, what: str, per: str) -> float:
    """Median over the rounds of our rate divided by theirs in the same round."""
    both = zip(rates(arms, ours, what, per), rates(arms, theirs, what, per), strict=True)
    return statistics.median(one / other for one, other in both)


def table(record: dict[str, Any]) -> str:
    """Rates per CPU-second and per second, and the ratios of the same rounds."""
    if not record["valid"]:
        return f"INVALID: {(record['problems'] or ['incomplete'])[0]}\n"
    given, machine = record["parameters"], record["machine"]
    lines = [
        f"{machine['cores']} cores of {machine['cpu']}, {given['disk']}; medians of {given['rounds']} rounds.",
        "",
        "| parts | way | GB per CPU-second | GB/s | files/s | stored |",
        "|---|---|---|---|---|---|",
    ]
    for size, arms in record["timings"].items():
        for name, rounds in arms.items():
            if name in STARTS:
                continue
            stored = rounds[0]["stored_bytes"] / rounds[0]["raw_bytes"]
            per_cpu, per_s, files = (
                statistics.median(rates(arms, name, what, per))
                for what, per in (("raw_bytes", "cpu_s"), ("raw_bytes", "wall_s"), ("files", "wall_s"))
            )
            lines.append(f"| {size} | {name} | {per_cpu / 1e9:.3f} | {per_s / 1e9:.3f} | {files:,.0f} | {stored:.1%} |")
    for start in STARTS:
        rounds = [one for arms in record["timings"].values() for one in arms[start]]
        cpu_s, wall_s = (statistics.median(one[what] for one in rounds) for what in ("cpu_s", "wall_s"))
        lines += ["", f"The {start}, taken out: {cpu_s:.2f} CPU-seconds, {wall_s:.2f} s."]
    lines += [
        "",
        "| parts | default : zstd -1, per CPU-s | fast : zstd -1, per CPU-s | groups : one fsync per file, files/s |",
        "|---|---|---|---|",
    ]
    for size, arms in record["timings"].items():
        pairs = [
            ratio(arms, "hs-mover default", _ZSTD, "raw_bytes", "cpu_s"),
            ratio(arms, "hs-mover fast", _ZSTD, "raw_bytes", "cpu_s"),
            ratio(arms, _GROUPED, _SINGLE, "files", "wall_s"),
        ]
        lines.append(f"| {size} | " + " | ".join(f"{value:.2f}" for value in pairs) + " |")
    return "\n".join([*lines, *_journal_table(record.get("journal") or {})]) + "\n"


def _journal_table(journal: Mapping[str, Any]) -> list[str]:
    if "timings" not in journal:
        return ["", f"No disk with a journal was tried: {journal['not_here']}."] if journal else []
    arms, waits = journal["timings"], " and ".join(f"{1000 * one:.1f}" for one in journal["sync_s"])
    disk = "ext4 with a journal on a loop device whose file lies on the first"
    lines = [
        "",
        f"Another disk, {disk}; parts of {SMALL}. An fsync of a small new file there: {waits} ms, before and after.",
        "",
        "| way | GB/s | files/s | files/s ÷ one fsync per file |",
        "|---|---|---|---|",
    ]
    for name in ON_JOURNAL:
        per_s, files = (statistics.median(rates(arms, name, what, "wall_s")) for what in ("raw_bytes", "files"))
        times = ratio(arms, name, _SINGLE, "files", "wall_s")
        lines.append(f"| {name} | {per_s / 1e9:.3f} | {files:,.0f} | {times:.1f} |")
    return lines


def plot(record: dict[str, Any], path: Path) -> None:
    """Bars: GB per CPU-second and per second, by size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes = list(record["timings"])
    names = [name for name in record["timings"][sizes[0]] if name not in STARTS]
    figure, both = plt.subplots(1, 2, figsize=(12, 4.5))
    for axes, per, title in zip(both, ("cpu_s", "wall_s"), ("GB per CPU-second", "GB per second"), strict=True):
        for number, name in enumerate(names):
            values = [statistics.median(rates(record["timings"][size], name, "raw_bytes", per)) / 1e9 for size in sizes]
            places = [place + (number - len(names) / 2 + 0.5) * 0.8 / len(names) for place in range(len(sizes))]
            axes.bar(places, values, 0.8 / len(names), label=name)
        axes.set_xticks(range(len(sizes)), sizes)
        axes.set_title(f"original {title}", fontsize=10)
        axes.set_xlabel("size of the parts")
    both[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
