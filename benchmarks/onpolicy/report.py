"""A result of this case, of one run or of several, as a table and as a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.onpolicy.arms import ARMS
from benchmarks.onpolicy.figures import RATIOS, per_thousand, seconds_of

__all__ = ["plot", "table"]

_SAYS = {
    "generate": "{arm}",
    "answers": "the same, while `hs-client run --generate` captures",
    "prefill": "the same, prompts as long as question and answer",
}
_PARTS = {"starts": "starts", "generate": "generating", "capture": "capturing; with one server both"}
_WAYS = {"one": "one server, `--generate`", "two": "two servers, one after the other"}


def table(record: dict[str, Any]) -> str:
    """Markdown: tokens/s by arm, seconds for 1,000 samples by way, ratios."""
    if not record["valid"]:
        return f"INVALID: {len(record['problems'])} problems, first: {(record['problems'] or ['incomplete'])[0]}\n"
    given, runs = record["parameters"], record["runs"]
    lines = [_conditions(record), ""]
    if not record["times_mean_something"]:
        lines += ["On this machine, or in the short form, times mean nothing: counts and shapes only.", ""]
    lines += ["| | tokens/s (spread) | of | start s | replays of graphs while capturing |", "|---|---|---|---|---|"]
    for name, arm in ARMS.items():
        for what, says in _SAYS.items():
            if found := _rates(record, name, what):
                measured = [run[name] for run in runs if name in run]
                cells = [says.format(arm=arm.says), _spread(found)]
                cells += ["prompts" if what == "prefill" else "answers"]
                cells += ["" if what != "generate" else f"{statistics.median(one['start_s'] for one in measured):.0f}"]
                cells += [_replays(measured) if what == "answers" else ""]
                lines.append("| " + " | ".join(cells) + " |")
    ways = per_thousand(runs, given["samples"])
    if ways:
        lines += ["", "| seconds for 1,000 samples | generate | capture | both | and the servers' starts |"]
        lines += ["|---|---|---|---|---|"]
    for way, seconds in ways.items():
        apart = [f"{seconds[part]:,.0f}" if way == "two" else "" for part in ("generate", "capture")]
        work_s = seconds["generate"] + seconds["capture"]
        cells = [_WAYS[way], *apart, f"{work_s:,.0f}", f"{seconds['all']:,.0f} ({seconds['starts']:.0f} of them)"]
        lines.append("| " + " | ".join(cells) + " |")
    if record["ratios"]:
        lines += ["", "| ratio | value | 95 % interval | meaning |", "|---|---|---|---|"]
    for name, meaning in RATIOS.items():
        if ratio := record["ratios"].get(name):
            interval = f"{ratio['low']:.3f}–{ratio['high']:.3f} ({ratio['samples']})"
            lines.append(f"| `{name}` | {ratio['value']:.3f} | {interval} | {meaning} |")
    busiest = max((one["generator_cpu"] for run in runs for one in run.values()), default=0.0)
    lines += ["", f"The load generator used at most {busiest:.0%} of one core.", ""]
    lines += [f"- not run, {name}: {why}" for name, why in record["absent"].items()]
    lines += [f"- not run yet: {', '.join(record['left'])}"] if record["left"] else []
    return "\n".join(lines).rstrip() + "\n"


def _rates(record: dict[str, Any], arm: str, what: str) -> list[float]:
    given = record["parameters"]
    tokens = given["samples"] * (given["new_tokens"] + (given["prompt_tokens"] if what == "prefill" else 0))
    if what == "prefill":
        return [tokens / seconds for seconds in seconds_of(record["runs"], arm, what)]
    return [given["samples"] * given["new_tokens"] / seconds for seconds in seconds_of(record["runs"], arm, what)]


def _spread(found: list[float]) -> str:
    return f"{statistics.median(found):,.0f} ({min(found):,.0f}–{max(found):,.0f})"


def _replays(measured: list[dict[str, Any]]) -> str:
    replays, forwards = (sum(one["replays"][at] for one in measured) for at in (0, 1))
    return f"{replays:,} of {forwards:,}"


def _conditions(record: dict[str, Any]) -> str:
    given, gpus = record["parameters"], record["machine"]["gpus"]
    where = f"{len(gpus)} × {gpus[0]}" if gpus else f"{record['machine']['cores']} CPU cores"
    return (
        f"{given['model']} on {where}, SGLang {record['versions'].get('sglang', '?')}, {len(record['runs'])} runs;"
        f" questions of {given['prompt_tokens']} tokens, answers of {given['new_tokens']}, {given['in_flight']} in"
        f" flight, blocks of {given['samples']} samples."
    )


def plot(record: dict[str, Any], path: Path) -> None:
    """Answers by arm, and seconds for 1,000 samples by way."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), width_ratios=(3, 2))
    labels: list[str] = []
    for name in ARMS:
        for what in ("generate", "answers"):
            if found := _rates(record, name, what):
                left.bar(len(labels), statistics.median(found), color="tab:blue" if what == "answers" else "tab:gray")
                left.plot([len(labels)] * len(found), found, "k.", markersize=4)
                labels.append(f"{name}\ncapturing" if what == "answers" else name)
    left.set_xticks(range(len(labels)), labels, fontsize=8)
    left.set_ylabel("tokens/s of answers")
    left.set_title(str(record["parameters"]["model"]), fontsize=10)
    ways = per_thousand(record["runs"], record["parameters"]["samples"])
    for at, seconds in enumerate(ways.values()):
        bottom = 0.0
        for number, (part, says) in enumerate(_PARTS.items()):
            right.bar(at, seconds[part], bottom=bottom, color=f"C{number}", label=says if at == 0 else None)
            bottom += seconds[part]
    right.set_xticks(range(len(ways)), [f"{way} server{'s' * (way == 'two')}" for way in ways], fontsize=8)
    right.set_ylabel("seconds for 1,000 samples")
    if ways:
        right.legend(fontsize=8, loc="lower center")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
