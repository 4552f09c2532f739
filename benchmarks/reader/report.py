"""A reader result as a table and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]

_REFERENCE = "pt"


def _codec(name: str) -> str:
    return name.partition(",")[0]


def table(record: dict[str, Any]) -> str:
    """Markdown: one line for each arm."""
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    parameters = record["parameters"]
    conditions = (
        f"{parameters['samples']} samples of {parameters['shape']} bfloat16, {record['bytes'] / 1e6:.0f} MB, read "
        f"from the page cache in one shuffled order. Median and quartiles of {parameters['rounds']} rounds; in GB of "
        f"states. Stored: times smaller than `{_REFERENCE}`."
    )
    lines += [
        conditions,
        "",
        "| | stored | GB a CPU-second | GB a second |",
        "|---|---|---|---|",
    ]
    for name, seconds in record["arms"].items():
        size = record["stored_bytes"][_REFERENCE] / record["stored_bytes"][_codec(name)]
        cells = [name, f"{size:.2f}", *(_speed(record, seconds[key]) for key in ("cpu_s", "wall_s"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _speed(record: dict[str, Any], seconds: list[float]) -> str:
    speeds = sorted(record["bytes"] / 1e9 / max(value, 1e-9) for value in seconds)
    quarter = len(speeds) // 4
    return f"{statistics.median(speeds):.2f} ({speeds[quarter]:.2f}–{speeds[-1 - quarter]:.2f})"


def plot(record: dict[str, Any], path: Path) -> None:
    """Speed for a CPU-second by arm."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(record["arms"])
    speeds = [record["bytes"] / 1e9 / statistics.median(record["arms"][name]["cpu_s"]) for name in names]
    figure, axes = plt.subplots(figsize=(8, 4))
    colours = ["tab:orange" if _codec(name) in ("default", "fast") else "tab:blue" for name in names]
    axes.barh(names[::-1], speeds[::-1], color=colours[::-1])
    axes.set_xlabel("GB of states a CPU-second")
    axes.grid(visible=True, axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
