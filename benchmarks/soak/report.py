"""Results of the case ``soak`` as a table and timelines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]

_MB = 1e6


def table(record: dict[str, Any]) -> str:
    """What was moved, how high scratch rose, and what the codec did."""
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    given = record["parameters"]
    lines += ["| what | |", "|---|---|"]
    if soak := record.get("soak"):
        excess = (soak["peak_bytes"] - soak["limit_bytes"]) / _MB
        lines += [
            (
                f"| soak | {given['seconds']:.0f} s, tmpfs of {given['tmpfs']}, drain limited to "
                f"{given['drain_bytes_per_s'] / _MB:.0f} MB/s, producer at twice that |"
            ),
            f"| parts moved, each once, each as it was written | {soak['parts']} |",
            (
                f"| mark, and largest fill | {soak['limit_bytes'] / _MB:.1f} MB, {soak['peak_bytes'] / _MB:.1f} MB "
                f"({excess:+.1f} MB; a record has up to {soak['largest_record_bytes'] / _MB:.1f} MB) |"
            ),
        ]
    if throttles := record.get("throttles"):
        lines += [f"| {phase['name']} | {phase['to_s'] - phase['from_s']:.0f} s |" for phase in throttles["phases"]]
        lines += [f"| said | {text} |" for text in throttles["said"]]
    if (chain := record.get("chain")) and "done" in chain:
        lines.append(f"| whole chain | {given['seconds']:.0f} s, {chain['done']} samples done and verified |")
        lines += [
            f"| memory of {item['name']} | {item['early_bytes'] / _MB:.0f} MB early, {item['late_bytes'] / _MB:.0f} MB "
            f"late ({item['grown_bytes'] / _MB:+.1f} MB) |"
            for item in chain["growth"]
        ]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Fill, limit and rate over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in ("soak", "throttles", "chain") if name in record]
    figure, found = plt.subplots(len(names), 1, figsize=(10, 3.6 * len(names)), squeeze=False)
    for axes, name in zip(found[:, 0], names, strict=True):
        part = record[name]
        if name == "chain":
            _plot_memory(axes, part)
            continue
        seconds = [row[0] for row in part["samples"]]
        axes.plot(seconds, [row[1] / _MB for row in part["samples"]], label="fill")
        axes.plot(seconds, [row[2] / _MB for row in part["samples"]], "--", label="what clients may fill")
        axes.plot(seconds, [row[3] / _MB for row in part["samples"]], label="backlog", alpha=0.6)
        axes.set_ylabel("MB")
        axes.set_xlabel("seconds")
        axes.set_title(name, fontsize=10)
        rate = axes.twinx()
        rate.plot(
            seconds, [row[4] / _MB for row in part["samples"]], color="tab:gray", linewidth=0.8, label="out, MB/s"
        )
        rate.set_ylabel("MB/s")
        rate.set_ylim(bottom=0)
        for phase in part.get("phases", []):
            axes.axvline(phase["from_s"], color="black", linewidth=0.6)
            axes.text(phase["from_s"], axes.get_ylim()[1] * 0.02, f" {phase['name']}", fontsize=8)
        if len(part["codecs"]) > 1:
            spans = [row for row in part["samples"] if part["codecs"][int(row[5])] != "default"]
            axes.scatter([row[0] for row in spans], [0] * len(spans), s=6, color="tab:red", label="codec fast")
        axes.legend(fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _plot_memory(axes: Any, chain: dict[str, Any]) -> None:
    for name, rows in chain["memory"].items():
        axes.plot([row[0] for row in rows], [row[1] / _MB for row in rows], label=name.partition(" ")[2])
    axes.set_ylabel("anonymous memory, MB")
    axes.set_xlabel("seconds")
    axes.set_ylim(bottom=0)
    axes.set_title("whole chain", fontsize=10)
    axes.legend(fontsize=8)
