"""A result of the peers, of one run or of several, as a table and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.peers.contestants import BASELINE, CONTESTANTS
from benchmarks.peers.merge import rates

__all__ = ["plot", "table"]


def _cells(record: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(cell for run in record["runs"] for one in run.values() for cell in one["cells"]))


def _names(record: dict[str, Any]) -> list[str]:
    seen = {name for run in record["runs"] for name in run}
    return [name for name in CONTESTANTS if name in seen]


def table(record: dict[str, Any]) -> str:
    """Markdown: tokens/s by contestant and cell, as a part of the baseline's in brackets."""
    if not record["valid"]:
        return f"INVALID: {len(record['problems'])} problems, first: {(record['problems'] or ['incomplete'])[0]}\n"
    given = record["parameters"]
    gpus = record["machine"]["gpus"]
    where = f"{len(gpus)} × {gpus[0]}" if gpus else f"{record['machine']['cores']} CPU cores"
    lines = [
        (
            f"{given['model']} on {where}, SGLang {record['versions'].get('sglang', '?')}, {len(record['runs'])} runs;"
            " tokens/s until the last state is a file in tmpfs, and as a part of the ceiling; columns are tokens of a"
            " prompt x prompts in flight."
        ),
        "",
    ]
    if not record["times_mean_something"]:
        lines += ["On this machine, or in the short form, times mean nothing: counts and shapes only.", ""]
    cells = _cells(record)
    lines += ["| | " + " | ".join(cells) + " |", "|---" * (len(cells) + 1) + "|"]
    others = False
    for name in _names(record):
        row: list[str] = []
        for cell in cells:
            found = rates(record["runs"], name, cell)
            ratio = record["ratios"].get(name, {}).get(cell)
            text = f"{statistics.median(found):,.0f}" if found else ""
            if ratio:
                others = others or ratio["other_run"]
                text += f" ({ratio['value']:.3f}{'†' if ratio['other_run'] else ''})"
            row.append(text)
        lines.append(f"| {CONTESTANTS[name].says} | " + " | ".join(row) + " |")
    if others:
        lines += ["", "† the ceiling is of another run."]
    if any(run[name].get("kind") == "loop" for run in record["runs"] for name in run):
        lines += ["", "A loop has one prompt in flight: its part is of the ceiling's best cell with prompts as long."]
    lines += ["", *(f"- not run, {name}: {why}" for name, why in record["absent"].items())]
    lines += [f"- not run yet: {', '.join(record['left'])}"] if record["left"] else []
    return "\n".join(lines).rstrip() + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Tokens/s of every contestant by cell."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    cells, names = _cells(record), _names(record)
    figure, axes = plt.subplots(figsize=(max(7.0, 1.2 * len(cells)), 4.5))
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        for at, cell in enumerate(cells):
            found = rates(record["runs"], name, cell)
            if found:
                x = at + number * width
                label = name if cell == next(c for c in cells if rates(record["runs"], name, c)) else None
                axes.bar(x, statistics.median(found), width, color=f"C{number}", label=label)
                axes.plot([x] * len(found), found, "k.", markersize=3)
    axes.set_yscale("log")
    axes.set_xticks([at + 0.4 for at in range(len(cells))], cells, fontsize=8)
    axes.set_xlabel("tokens of a prompt x prompts in flight")
    axes.set_ylabel("tokens/s, states in files")
    axes.set_title(f"{record['parameters']['model']}; the ceiling is {BASELINE!r}", fontsize=10)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
