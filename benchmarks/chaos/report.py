"""Results of the case ``chaos`` as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot", "table"]


def table(record: dict[str, Any]) -> str:
    """What was killed and stopped, and what came of the rows."""
    lines = [] if not record["problems"] else [f"INVALID: {record['problems'][0]}", ""]
    kills = record["kills"]
    shares = ", ".join(f"{count} {name}" for name, count in sorted(kills.items()))
    others = {kind: count for kind, count in sorted(record["events"].items()) if not kind.startswith("kill")}
    endings = ", ".join(f"{count} × {code}" for code, count in sorted(record["endings"].items()))
    seconds = sum(item[4] for item in record["rounds"])
    lines += [
        "| what | |",
        "|---|---|",
        f"| SIGKILL to a living program | {sum(kills.values())} of {record['parameters']['kills']}: {shares} |",
        f"| other faults | {', '.join(f'{count} {kind}' for kind, count in others.items()) or 'none'} |",
        f"| rounds, each with a dataset of its own | {len(record['rounds'])} in {seconds / 60:.0f} min |",
        f"| rows, each once, whole and equal to transformers | {record['rows']} |",
        f"| largest difference | {record['largest_difference']:.2g} |",
        f"| records of other attempts left beside (orphans) | {record['orphans']} |",
        f"| exit codes of clients that ended by themselves | {endings} |",
        f"| lost, doubled, partial, swapped, wrong, damaged | {len(record['problems'])} |",
    ]
    return "\n".join(lines) + "\n"


def plot(record: dict[str, Any], path: Path) -> None:
    """Kills and right rows as they add up over the rounds, and events by kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (growing, kinds) = plt.subplots(1, 2, figsize=(11, 4))
    for column, name in ((1, "programs killed"), (2, "rows right")):
        total, values = 0.0, []
        for item in record["rounds"]:
            total += item[column]
            values.append(total)
        growing.plot(range(1, len(values) + 1), values, marker=".", label=name)
    growing.set_xlabel("rounds")
    growing.set_yscale("log")
    growing.legend()
    named = sorted(record["events"].items(), key=lambda item: item[1])
    kinds.barh([kind for kind, _ in named], [count for _, count in named])
    kinds.set_xlabel("times")
    figure.suptitle(f"chaos, seed {record['parameters']['seed']}: {len(record['problems'])} faults found")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
