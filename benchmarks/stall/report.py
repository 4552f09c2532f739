"""A stall result as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]


def table(record: dict[str, Any]) -> str:
    """Markdown: what became of the requests, and the memory of the schedulers."""
    given = record["parameters"]
    where = ", ".join(record["machine"]["gpus"]) or f"{record['machine']['cores']} CPU cores"
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    counts = record["counts"]
    conditions = (
        f"{given['model']} on {where}, SGLang {record['versions'].get('sglang', '?')}; tmpfs of {given['tmpfs']}, "
        f"{given['seconds']:.0f} s of load, {given['concurrency']} in flight, nothing drained."
    )
    lines += [
        conditions,
        "",
        "| what | |",
        "|---|---|",
        f"| requests answered | {counts['requests']}, {counts['foreign']} of them foreign |",
        f"| ours: complete on disk | {counts['complete']} |",
        f"| ours: given up, in the failure record | {counts['given_up']} |",
        f"| ours: lost | {counts['lost']} |",
        f"| health checks, slowest | {record['health_checks']}, {record['health_slowest_s']} s |",
        f"| captured again once space was free | {'yes' if record['recovered_after_space'] else 'no'} |",
        f"| ring waits | {record['ring_waits']}, {record['ring_waited_s']} s |",
    ]
    for item in record["memory"]:
        lines.append(
            f"| scheduler's memory, early and late | {item['early_bytes'] / 2**20:,.0f} and "
            f"{item['late_bytes'] / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Memory of the schedulers over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5))
    for pid, rows in record["memory_samples"].items():
        axes.plot([row[0] for row in rows], [row[1] / 2**20 for row in rows], label=f"scheduler {pid}")
    axes.set_ylim(0, 1.2 * max(axes.get_ylim()[1], 1.0))
    axes.set_xlabel("seconds")
    axes.set_ylabel("anonymous memory, MiB")
    axes.set_title(
        f"{record['parameters']['model']}, scratch of {record['parameters']['tmpfs']} never emptied", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
