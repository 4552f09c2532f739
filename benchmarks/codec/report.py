"""A codec result as a table and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["mean_ratio", "plot", "table"]

_REFERENCE = "zstd -1"


def mean_ratio(candidate: dict[str, Any]) -> float:
    """Over the real samples."""
    return float(statistics.mean(ratio for stem, ratio in candidate["ratios"].items() if stem != "drawn"))


def _speed(record: dict[str, Any], seconds: Sequence[float]) -> float:
    """GB of states a CPU-second, median round."""
    return float(record["bytes"]) / 1e9 / max(statistics.median(seconds), 1e-9)


def _against(record: dict[str, Any], name: str, key: str) -> tuple[float, float, float]:
    """Times faster than the reference in the same round: median, quartiles."""
    ours, theirs = record["candidates"][name][key], record["candidates"][_REFERENCE][key]
    rounds = sorted(other / max(own, 1e-9) for own, other in zip(ours, theirs, strict=True))
    quarter = len(rounds) // 4
    return statistics.median(rounds), rounds[quarter], rounds[-1 - quarter]


def table(record: dict[str, Any]) -> str:
    """Markdown: one line for each candidate."""
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    rows, slots, channels = record["parameters"]["shape"]
    count = len(record["parameters"]["samples"])
    conditions = (
        f"Ratio: mean of {count} real samples (least to most). Speed on one thread, GB of states a CPU-second, on a "
        f"drawn tensor [{rows}, {slots}, {channels}]; in brackets, times `{_REFERENCE}` in the same round: median and "
        f"quartiles of {record['parameters']['rounds']} rounds."
    )
    lines += [
        conditions,
        "",
        "| | ratio | ratio, drawn | encode | decode |",
        "|---|---|---|---|---|",
    ]
    for name, candidate in record["candidates"].items():
        real = [ratio for stem, ratio in candidate["ratios"].items() if stem != "drawn"]
        cells = [
            f"{name} {candidate['version']}".strip(),
            f"{statistics.mean(real):.3f} ({min(real):.3f}–{max(real):.3f})",
            f"{candidate['ratios']['drawn']:.3f}",
        ]
        for key in ("encode_s", "decode_s"):
            median, low, high = _against(record, name, key)
            cells.append(f"{_speed(record, candidate[key]):.2f} ({median:.2f}, {low:.2f}–{high:.2f})")
        lines.append("| " + " | ".join(cells) + " |")
    one, whole = statistics.median(record["one_slot_s"]), statistics.median(record["candidates"]["default"]["decode_s"])
    lines += ["", f"One of the {slots} slots alone: {one / whole:.0%} of the time that decoding all of them takes."]
    lines += [f"Not compared: {name} ({why})." for name, why in record["missing"].items()]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Ratio over encoding speed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    for name, candidate in record["candidates"].items():
        speed, ratio = _speed(record, candidate["encode_s"]), mean_ratio(candidate)
        ours = name in ("default", "fast")
        axes.scatter([speed], [ratio], color="tab:orange" if ours else "tab:blue", zorder=3)
        axes.annotate(name, (speed, ratio), xytext=(6, 4), textcoords="offset points", fontsize=9)
    axes.set_xscale("log")
    axes.set_xlabel("encoding, GB of states a CPU-second")
    axes.set_ylabel("ratio on real bfloat16 states")
    axes.grid(visible=True, alpha=0.3)
    axes.margins(0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
