"""A resume result as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]


def table(record: dict[str, Any]) -> str:
    """Markdown: seconds to the first request and memory of each run."""
    given = record["parameters"]
    size = f"{given['prompts_bytes'] / 1e9:.2f} GB"
    conditions = (
        f"{given['rows']:,} rows of {given['kind']}, {given['tokens']} tokens each ({size}); resumed with"
        f" {given['done']:,} done; {record['machine']['cores']} CPU cores, shared with other work."
    )
    lines = [
        conditions,
        "",
        "| run | first request after | processor time | peak of anonymous memory | load average at the start |",
        "|---|---|---|---|---|",
    ]
    for name, run in record["runs"].items():
        load = run.get("load_average", "not noted")
        seconds = f"{run['first_request_s']:.1f} s | {run['cpu_s']:.1f} s"
        lines.append(f"| {name} | {seconds} | {run['peak_mib']:.0f} MiB | {load} |")
    lines += ["", f"Ledger {given['ledger_bytes'] / 1e6:.0f} MB, cache of rows {given['cache_bytes'] / 1e6:.0f} MB."]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Memory of the client until its first request."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.5))
    for name, run in record["runs"].items():
        axes.plot([row[0] for row in run["memory_samples"]], [row[1] for row in run["memory_samples"]], label=name)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds until the first request")
    axes.set_ylabel("anonymous memory, MiB")
    axes.set_title(f"hs-client run over {record['parameters']['rows']:,} rows", fontsize=10)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
