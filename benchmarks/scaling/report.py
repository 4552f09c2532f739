"""A scaling result as tables and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]

_MB = 1e6


def table(record: dict[str, Any]) -> str:
    """Markdown: processor time and memory by size, and the power with which each grows."""
    lines = [] if record["valid"] else [f"INVALID: {(record['problems'] or ['incomplete'])[0]}", ""]
    sizes: list[int] = record["parameters"]["rows"]
    growth = record.get("growth", {})
    lines += [
        f"{record['machine']['cores']} CPU cores; processor time, and memory beyond that of the idle process.",
        "",
        "| rows | " + " | ".join(f"{rows:,}" for rows in sizes) + " | power of time, memory | a row costs |",
        "|---" * (len(sizes) + 3) + "|",
    ]
    for name, rows in record["rows"].items():
        cells = {row["rows"]: f"{row['cpu_s']:.2f} s, {row['peak_bytes'] / _MB:.0f} MB" for row in rows}
        last = rows[-1]
        each = f"{1e6 * last['cpu_s'] / last['rows']:.1f} µs, {last['peak_bytes'] / last['rows']:.0f} B"
        powers = _powers(growth.get(name))
        lines.append(f"| {name} | " + " | ".join(cells.get(size, "") for size in sizes) + f" | {powers} | {each} |")
    lines += _parts(record.get("parts", {}))
    if "parts that wait" in growth:
        lines.append(f"\nWith the parts that wait, the time of the mover grows with the power "
                     f"{growth['parts that wait']['time']:.2f}.")  # fmt: skip
    lines += _clients(record.get("clients", []))
    return "\n".join(lines) + "\n"


def _powers(growth: dict[str, Any] | None) -> str:
    if growth is None:
        return ""
    return f"{growth['time']:.2f}, {growth['memory']:.2f}"


def _parts(parts: dict[str, Any]) -> list[str]:
    if not parts:
        return []
    start_s = parts["start"]["cpu_s"]
    lines = [
        "",
        f"One mover from start to end, less the {start_s:.2f} s of processor time that it takes with nothing to do.",
        "",
        "| parts | MB | wall | processor time | a part | MB/s of a core |",
        "|---|---|---|---|---|---|",
    ]
    for what, label in (("size", "part_bytes"), ("backlog", "parts"), ("threads", "threads")):
        for row in parts.get(what, []):
            cpu_s = max(1e-6, row["cpu_s"] - start_s)
            about = {
                "size": f"of {row[label] / 1e3:,.0f} kB",
                "backlog": "of 5 kB, waiting",
                "threads": f"of 1 MB, {row[label]} threads",
            }[what]
            lines.append(
                f"| {row['files']:,} {about} | {row['raw_bytes'] / _MB:.0f} | {row['wall_s']:.2f} s | {cpu_s:.2f} s"
                f" | {1e3 * cpu_s / row['files']:.2f} ms | {row['raw_bytes'] / cpu_s / _MB:.0f} |"
            )
    return lines


def _clients(clients: list[dict[str, Any]]) -> list[str]:
    if not clients:
        return []
    lines = ["", "| clients on one scratch | grants/s of all | processor time of a grant |", "|---|---|---|"]
    for row in clients:
        each = f"{1e6 * row['cpu_s'] / row['grants']:.0f} µs"
        lines.append(f"| {row['clients']} | {row['grants'] / row['seconds']:,.0f} | {each} |")
    return lines


def plot(record: dict[str, Any], path: Path) -> None:
    """Time and memory by rows, both axes logarithmic; what moving and admission cost beside them."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, ((times, memory), (parts, clients)) = plt.subplots(2, 2, figsize=(12, 8))
    for name, rows in record["rows"].items():
        sizes = [row["rows"] for row in rows]
        times.loglog(sizes, [max(row["cpu_s"], 1e-4) for row in rows], "o-", label=name, markersize=4)
        memory.loglog(sizes, [max(row["peak_bytes"], 1e4) / _MB for row in rows], "o-", label=name, markersize=4)
    for axes, unit in ((times, "processor time, s"), (memory, "memory beyond the idle process, MB")):
        axes.set_xlabel("rows")
        axes.set_ylabel(unit)
        axes.legend(fontsize=7)
        axes.grid(visible=True, which="major", alpha=0.3)
    start_s = record["parts"]["start"]["cpu_s"]
    for what, label in (("size", "parts of 10 kB to 10 MB, 100 MB in all"), ("backlog", "parts of 5 kB")):
        rows = record["parts"][what]
        each = [1e3 * max(1e-6, row["cpu_s"] - start_s) / row["files"] for row in rows]
        parts.loglog([row["raw_bytes"] / row["files"] for row in rows], each, "o", label=label)
    parts.set_xlabel("bytes of a part")
    parts.set_ylabel("processor time of a part, ms")
    parts.legend(fontsize=7)
    rows = record["clients"]
    clients.plot([row["clients"] for row in rows], [row["grants"] / row["seconds"] for row in rows], "o-")
    clients.set_xlabel("clients on one scratch")
    clients.set_ylabel("grants/s of all")
    clients.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
