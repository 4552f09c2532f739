"""Results of the case ``objectstore`` as a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["plot", "rates", "table"]

_START = "start of hs-mover"


def rates(arms: Mapping[str, Sequence[Mapping[str, Any]]], name: str, what: str) -> list[float]:
    """`what` per CPU-second of the sender in each round; the start of hs-mover, which it has once, is taken out."""
    starts = [float(one["cpu_s"]) for one in arms[_START]] if name.startswith("hs-mover") else [0.0] * len(arms[name])
    return [
        float(one[what]) / max(0.1 * one["cpu_s"], one["cpu_s"] - start)
        for one, start in zip(arms[name], starts, strict=True)
    ]


def _names(record: Mapping[str, Any]) -> list[str]:
    return [name for name in next(iter(record["timings"].values())) if name != _START]


def table(record: dict[str, Any]) -> str:
    """Rates per CPU-second of the sender."""
    if not record["valid"]:
        return f"INVALID: {(record['problems'] or ['incomplete'])[0]}\n"
    given, machine = record["parameters"], record["machine"]
    lines = [
        f"{machine['cores']} cores of {machine['cpu']}, {given['rclone']}; medians of {given['rounds']} rounds.",
        "",
        "| parts | way | original GB per CPU-second | sent GB per CPU-second | sent | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for size, arms in record["timings"].items():
        for name in _names(record):
            sent = arms[name][0]["stored_bytes"] / arms[name][0]["raw_bytes"]
            raw, stored = (statistics.median(rates(arms, name, what)) / 1e9 for what in ("raw_bytes", "stored_bytes"))
            wall_s = statistics.median(one["wall_s"] for one in arms[name])
            lines.append(f"| {size} | {name} | {raw:.3f} | {stored:.3f} | {sent:.1%} | {wall_s:.1f} |")
    starts = [one["cpu_s"] for arms in record["timings"].values() for one in arms[_START]]
    lines += ["", f"The start of hs-mover, taken out: {statistics.median(starts):.2f} CPU-seconds."]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Bars: original GB per CPU-second of the sender, by size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    sizes, names = list(record["timings"]), _names(record)
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for number, name in enumerate(names):
        values = [statistics.median(rates(record["timings"][size], name, "raw_bytes")) / 1e9 for size in sizes]
        places = [place + (number - len(names) / 2 + 0.5) * 0.8 / len(names) for place in range(len(sizes))]
        axes.bar(places, values, 0.8 / len(names), label=name)
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_title("original GB per CPU-second of the sender", fontsize=10)
    axes.set_xlabel("size of the parts")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
