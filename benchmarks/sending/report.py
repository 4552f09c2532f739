"""A sending result by tenths of its rows, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Tenth", "plot", "table", "tenths"]

Sampled = tuple[float, int, float, float]
"""Seconds, requests that came, processor seconds, MiB of anonymous memory."""


@dataclass(frozen=True, slots=True)
class Tenth:
    """A tenth of the rows: requests a second, processor time a row, memory at its end."""

    upto: int
    per_s: float
    cpu_us: float
    mib: float


def tenths(samples: Sequence[Sampled], count: int) -> list[Tenth]:
    """Cut a run of `count` rows into tenths at the samples that come next after each bound; pure.

    Tenths of a run so short that no sample fell into them are left out.
    """
    if not samples:
        return []
    before = max((each for each in samples if not each[1]), default=samples[0])
    found: list[Tenth] = []
    for at in range(1, 11):
        bound = count * at // 10
        end = next((each for each in samples if each[1] >= bound), None)
        if end is None or end[1] <= before[1]:
            continue
        rows, seconds = end[1] - before[1], end[0] - before[0]
        per_s = rows / seconds if seconds > 0 else 0.0
        found.append(Tenth(end[1], round(per_s, 1), round(1e6 * (end[2] - before[2]) / rows, 1), end[3]))
        before = end
    return found


def _growth(record: dict[str, Any]) -> float:
    """Bytes of memory that a row adds, from the end of the first tenth to that of the last."""
    found = record["tenths"]
    if len(found) < 2:
        return 0.0
    return float((found[-1]["mib"] - found[0]["mib"]) * (1 << 20) / (found[-1]["upto"] - found[0]["upto"]))


def table(record: dict[str, Any]) -> str:
    """Markdown: rate, processor time and memory by tenths of the rows."""
    given, summary = record["parameters"], record["summary"]
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    done, seconds = summary["samples"]["done"], summary["seconds"]
    conditions = (
        f"{given['rows']:,} rows of {given['ids']} ids, {given['concurrency']} in flight: {done:,} done in"
        f" {seconds:,.0f} s; {record['machine']['cores']} CPU cores, shared with the stub and with other work (load"
        f" average {record['load_average']} at the start)."
    )
    lines += [
        conditions,
        "",
        "| rows sent | requests/s | processor time a row, µs | anonymous memory, MiB |",
        "|---|---|---|---|",
    ]
    for tenth in record["tenths"]:
        lines.append(f"| {tenth['upto']:,} | {tenth['per_s']:,.0f} | {tenth['cpu_us']:,.0f} | {tenth['mib']:,.0f} |")
    peak = max((sample[3] for sample in record["samples"]), default=0.0)
    lines += ["", f"Peak {peak:,.0f} MiB; a row sent adds {_growth(record):,.1f} bytes after the first tenth."]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Memory and processor time a row over the rows sent."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (memory, work) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    sent = [sample[1] for sample in record["samples"]]
    memory.plot(sent, [sample[3] for sample in record["samples"]])
    memory.set_ylim(bottom=0)
    memory.set_ylabel("anonymous memory, MiB", fontsize=8)
    memory.set_title(f"hs-client run, {record['parameters']['rows']:,} rows sent", fontsize=10)
    ends = [tenth["upto"] for tenth in record["tenths"]]
    work.plot(ends, [tenth["cpu_us"] for tenth in record["tenths"]], "o-")
    work.set_ylim(bottom=0)
    work.set_ylabel("processor time a row, µs", fontsize=8)
    work.set_xlabel("rows sent")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
