"""A client result as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]

_BASE = "httpx-pool"
_NAMES = {
    "ours": "hs-client, httpx",
    "ours-httpx2": "hs-client, httpx2",
    "openai": "AsyncOpenAI",
    "httpx-pool": "one httpx client, as it comes",
    "httpx-pool-tuned": "one httpx client, limits raised, msgspec",
    "aiohttp": "aiohttp, json",
}


def _rows(record: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any], float]]:
    """Loop, concurrency, arm, figures, share of the pool's processor time."""
    found: list[tuple[str, str, str, dict[str, Any], float]] = []
    for key, arm in record["arms"].items():
        loop, concurrency, name = key.split(" ")
        base = record["arms"].get(f"{loop} {concurrency} {_BASE}", arm)
        found.append((loop, concurrency, name, arm, arm["cpu_us"] / base["cpu_us"] if base["cpu_us"] else 0.0))
    return found


def table(record: dict[str, Any]) -> str:
    """Markdown: what each arm costs, and how it compares with the shared pool."""
    given = record["parameters"]
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    machine, httpx = record["machine"], record["versions"].get("httpx", "?")
    samples = f"{given['rounds']} samples of {given['seconds']:g} s an arm, medians"
    lines += [
        f"{machine['cpu']}, {machine['cores']} cores, httpx {httpx}; bodies of {given['ids']:,} ids; {samples}.",
        "",
        "| loop | in flight | client | CPU a request, µs | of the pool's | requests/s | p50, ms | p99, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for loop, concurrency, name, arm, share in _rows(record):
        lines.append(
            f"| {loop} | {concurrency} | {_NAMES[name]} | {arm['cpu_us']:,.0f} | {share:.2f} | {arm['per_s']:,.0f} |"
            f" {arm['p50_ms']:,.0f} | {arm['p99_ms']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Processor time of a request by arm, a panel for each loop and concurrency."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for loop, concurrency, name, arm, _ in _rows(record):
        groups.setdefault(f"{loop}, {concurrency} in flight", []).append((name, arm))
    figure, panels = plt.subplots(
        1, len(groups), figsize=(3.2 * len(groups) + 2, 3.2), sharex=True, sharey=True, squeeze=False
    )
    panels[0][0].set_xscale("log")
    panels[0][0].invert_yaxis()
    for axes, (title, arms) in zip(panels[0], groups.items(), strict=True):
        colors = ["tab:blue" if name.startswith("ours") else "tab:gray" for name, _ in arms]
        places = range(len(arms))
        axes.barh(places, [arm["cpu_us"] for _, arm in arms], color=colors)
        for place, (_, arm) in zip(places, arms, strict=True):
            axes.plot(arm["cpu_us_samples"], [place] * len(arm["cpu_us_samples"]), "k|", markersize=6)
        axes.set_yticks(list(places), [_NAMES[name] for name, _ in arms], fontsize=8)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("CPU a request, µs (log scale)", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
