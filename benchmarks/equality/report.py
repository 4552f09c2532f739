"""An equality result as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]


def table(record: dict[str, Any]) -> str:
    """Markdown: every comparison, and how many forward passes were replayed graphs."""
    given = record["parameters"]
    where = ", ".join(record["machine"]["gpus"]) or f"{record['machine']['cores']} CPU cores"
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    conditions = (
        f"{given['model']} ({given['weights']}) on {where}, SGLang {record['versions'].get('sglang', '?')}; "
        f"{given['records']} prompts of 1–{given['longest']} tokens, {given['tokens']:,} in all, "
        f"{given['concurrency']} in flight. Neighbouring slots differ by at least {record.get('slot_change')}."
    )
    lines += [
        conditions,
        "",
        "| arm | states | compared with | bit-equal | largest ulp, slot by slot | largest relative difference |",
        "|---|---|---|---|---|---|",
    ]
    for item in record["comparisons"]:
        relative = ", ".join(f"{value:.1e}" if value else "0" for value in item["max_relative"])
        lines.append(
            f"| {item['arm']} | {item['what']} | {item['against']} | {item['bit_equal']} of {item['records']} "
            f"| {', '.join(map(str, item['max_ulp']))} | {relative} |"
        )
    lines += ["", "| arm | pass | forward passes | replayed graphs | parts |", "|---|---|---|---|---|"]
    for name, arm in record["arms"].items():
        for what, numbers in arm["passes"].items():
            lines.append(
                f"| {name} | {what} | {numbers['forwards']} | {numbers['graph_replays']} | {numbers['parts']} |"
            )
    if record["skipped_arms"]:
        lines += ["", f"Not run, for lack of time: {', '.join(record['skipped_arms'])}."]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Share of bit-equal records of every comparison."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    items = record["comparisons"]
    figure, axes = plt.subplots(figsize=(8, 0.45 * len(items) + 1.2))
    axes.barh(range(len(items)), [item["bit_equal"] / item["records"] for item in items], color="tab:blue")
    axes.set_yticks(
        range(len(items)), [f"{item['arm']}, {item['what']} : {item['against']}" for item in items], fontsize=8
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.05)
    axes.set_xlabel("share of records equal to the bit")
    axes.set_title(record["parameters"]["model"], fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
