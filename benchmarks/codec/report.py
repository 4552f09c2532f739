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
    """Ratio on real states, and speed as a multiple of the reference, a bar for each candidate."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(record["candidates"])[::-1]
    colours = ["tab:orange" if name in ("default", "fast") else "tab:blue" for name in names]
    figure, (sizes, speeds) = plt.subplots(1, 2, sharey=True, figsize=(9, 3.8))
    ratios = [mean_ratio(record["candidates"][name]) for name in names]
    sizes.barh(names, ratios, color=colours)
    sizes.set_xlim(1.0, 1.1 * max(ratios))
    for at, ratio in enumerate(ratios):
        sizes.text(ratio, at, f" {ratio:.3f}", va="center", fontsize=8)
    sizes.set_xlabel("ratio on real bfloat16 states")
    for offset, key, label in ((0.2, "encode_s", "encode"), (-0.2, "decode_s", "decode")):
        places = [at + offset for at in range(len(names))]
        times = [_against(record, name, key)[0] for name in names]
        speeds.barh(places, times, height=0.4, label=label, color="tab:blue" if key == "encode_s" else "lightsteelblue")
    speeds.axvline(1.0, color="grey", linewidth=0.8)
    speeds.set_xlabel(f"speed, times {_REFERENCE} in the same round")
    speeds.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
