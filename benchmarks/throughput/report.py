"""A throughput result as a table and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]

_RATIOS = {
    "capture_ratio": "capturing ÷ not capturing, blocks by turns in one server: the cost of copying",
    "aux_ratio": "armed server, nothing captured ÷ server without the plugin: the cost of auxiliary states",
    "total_ratio": "capturing ÷ server without the plugin",
    "dormant_ratio": "dormant plugin ÷ without",
    "decode_ratio": "decode of one stream, armed ÷ without the plugin",
    "graphs_ratio": "CUDA graphs on ÷ off, without the plugin",
    "source_ratio": "source mode: capturing ÷ not capturing, blocks by turns in one server",
    "source_total_ratio": "source mode, capturing ÷ server without the plugin, all graphs on",
}


def table(record: dict[str, Any]) -> str:
    """Markdown: arms, ratios, and what bounded them."""
    if not record["valid"]:
        return f"INVALID: {len(record['problems'])} problems, first: {(record['problems'] or ['incomplete'])[0]}\n"
    figures = record["times_mean_something"]
    lines = [
        _conditions(record),
        "",
    ]
    if not figures:
        lines += ["On this machine, or in the short form, times mean nothing: counts and shapes only.", ""]
    lines += [
        "| graphs | plugin | prefill tok/s (spread) | decode tok/s | replays | GB/s | ring waits |",
        "|---|---|---|---|---|---|---|",
    ]
    for arm in record["arms"].values():
        for what, samples in (("", arm["foreign"]), (", capturing", arm["ours"])):
            if not samples:
                continue
            lines.append(_row(arm, samples, capturing=bool(what)))
    lines += ["", "| ratio | value | 95 % interval | meaning |", "|---|---|---|---|"]
    for name, meaning in _RATIOS.items():
        for suffix, note in (("", ""), ("_graphs_off", ", graphs off")):
            ratio = record.get(name + suffix)
            if ratio:
                lines.append(
                    f"| `{name}{suffix}` | {ratio['value']:.4f} | {ratio['low']:.4f}–{ratio['high']:.4f} "
                    f"({ratio['samples']}) | {meaning}{note} |"
                )
    busiest = max(arm["generator_cpu_max"] for arm in record["arms"].values())
    lines += ["", f"The load generator used at most {busiest:.0%} of one core."]
    again = [arm["again"][1] / arm["again"][0] for arm in record["arms"].values() if arm.get("again")]
    if again and figures:
        lines.append(
            f"The same prompts sent once more took {1 / max(again):.3f} of the time or longer: nothing was cached."
        )
    lines += _testimonies(record["arms"])
    if record["skipped_arms"]:
        lines.append(f"Not run, for lack of time: {', '.join(record['skipped_arms'])}.")
    return "\n".join(lines) + "\n"


def _testimonies(arms: dict[str, Any]) -> list[str]:
    """What the servers' processes say of their own functions, a line for each state of the plugin."""
    lines: list[str] = []
    for plugin in ("dormant", "capture"):
        said = [item for arm in arms.values() if arm["plugin"] == plugin for item in arm.get("testimony", [])]
        if said:
            names = list(said[0]["functions"])
            hooked = [name for name in names if any(item["functions"][name]["hooked"] for item in said)]
            modules = max(len(item["capture_modules"]) for item in said)
            originals = f"{len(names) - len(hooked)} of {len(names)} functions are SGLang's own"
            lines.append(f"Inside the {plugin} servers: {originals}, {modules} modules of the capture are loaded.")
    return lines


def _conditions(record: dict[str, Any]) -> str:
    given = record["parameters"]
    low, high = given["lengths"]
    return (
        f"{given['model']} on {_where(record)}, SGLang {record['versions'].get('sglang', '?')}; {low}–{high} tokens, "
        f"{given['concurrency']} in flight, blocks of {given['block']} requests."
    )


def _row(arm: dict[str, Any], samples: list[float], *, capturing: bool) -> str:
    cells = [
        "on" if arm["graphs"] else "off",
        arm["plugin"] + (", capturing" if capturing else ""),
        f"{statistics.median(samples):,.0f} ({min(samples):,.0f}–{max(samples):,.0f})",
    ]
    if capturing:
        counters = arm["capture"][0]
        cells += [
            "",
            f"{counters['graph_replays']} of {counters['forwards']}",
            f"{statistics.median(arm['scratch_bytes_per_s']) / 1e9:.2f}",
            f"{counters['ring_waits']} ({counters['ring_waited_s']:.3f} s)",
        ]
    else:
        cells += [f"{statistics.median(arm['decode_tokens_per_s']):.1f}", "", "", ""]
    return "| " + " | ".join(cells) + " |"


def _where(record: dict[str, Any]) -> str:
    found = record["machine"]["gpus"]
    return f"{len(found)} × {found[0]}" if found else f"{record['machine']['cores']} CPU cores"


def plot(record: dict[str, Any], path: Path) -> None:
    """Prefill of every arm with all samples, and the ratios with their intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), width_ratios=(3, 2))
    labels: list[str] = []
    for arm in record["arms"].values():
        for what, samples in (("", arm["foreign"]), ("\ncapturing", arm["ours"])):
            if samples:
                at = len(labels)
                labels.append(f"{'graphs' if arm['graphs'] else 'eager'}\n{arm['plugin']}{what}")
                left.bar(at, statistics.median(samples), color="tab:blue" if what else "tab:gray", alpha=0.7)
                left.plot([at] * len(samples), samples, "k.", markersize=4)
    left.set_xticks(range(len(labels)), labels, fontsize=8)
    left.set_ylabel("prefill tokens/s")
    left.set_title(f"{record['parameters']['model']}, {_where(record)}", fontsize=10)
    names = [name for name in record if name.endswith(("_ratio", "_ratio_graphs_off"))]
    for at, name in enumerate(names):
        ratio = record[name]
        error = [[ratio["value"] - ratio["low"]], [ratio["high"] - ratio["value"]]]
        right.errorbar(ratio["value"], at, xerr=error, fmt="o", color="tab:blue", capsize=3)
    right.axvline(1.0, color="black", linewidth=0.8)
    right.axvline(0.99, color="tab:red", linewidth=0.8, linestyle="--")
    right.set_yticks(range(len(names)), names, fontsize=8)
    right.invert_yaxis()
    right.set_title("ratios, 95 % bootstrap", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
