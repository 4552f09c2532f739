"""What README.md says of cost and speed: a line for each claim, made of the newest valid results and linked to them.

A claim whose result is missing is left out, never guessed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.codec.report import mean_ratio
from benchmarks.mover.report import ratio
from benchmarks.results import RESULTS, latest

__all__ = ["headlines"]

Record = Mapping[str, Any]

_MODELS = {"llama8b": "Llama-3.1-8B", "dsv2lite": "DeepSeek-V2-Lite"}
"""Configs with drawn weights that were captured on GPUs, by label."""


def headlines(folder: Path = RESULTS) -> str:
    """A Markdown table: what was asked, the figure, under which conditions, and the result file.

    Of a case that was run with and without GPUs, the runs with GPUs count.
    """
    lines = ["| what | figure | measured on | result |", "|---|---|---|---|"]
    for case, make in _CASES.items():
        found = latest(case, folder)
        on_gpus = [item for item in found if item[1]["machine"]["gpus"]]
        for path, record in on_gpus or found:
            link = f"[{case}](benchmarks/results/{case}/{path.name})"
            lines += [f"| {what} | {figure} | {where} | {link} |" for what, figure, where in make(record)]
    return "\n".join(lines) + "\n"


Claims = Iterator[tuple[str, str, str]]


def _throughput(record: Record) -> Claims:
    label = record["label"]
    if label not in _MODELS or "total_ratio" not in record:
        return
    rate = statistics.median(record["arms"]["on-capture"]["scratch_bytes_per_s"]) / 1e9
    where = f"{_gpus(record)}, SGLang {record['versions']['sglang']}, {_MODELS[label]}"
    figure = f"{_interval(record['total_ratio'])} at {rate:.2f} GB/s into tmpfs"
    yield "speed of prefill while capturing ÷ without the plugin", figure, where
    yield "speed of decoding for others ÷ without the plugin", _interval(record["decode_ratio"]), where


def _onpolicy(record: Record) -> Claims:
    given, found = record["parameters"], record["ratios"]
    if record["label"] not in _MODELS or not {"armed", "one", "two"} <= found.keys():
        return
    shape = f"{given['prompt_tokens']} + {given['new_tokens']} tokens, {given['in_flight']} in flight"
    where = f"{_gpus(record)}, SGLang {record['versions']['sglang']}, {_MODELS[record['label']]}, {shape}"
    yield "speed of decoding many answers with capture armed ÷ without the plugin", _interval(found["armed"]), where
    yield "the same while `--generate` captures them, by a second prefill", _interval(found["one"]), where
    yield "prompts to dataset: time with a second server ÷ with one", _interval(found["two"]), where


def _equality(record: Record) -> Claims:
    for compared in record["comparisons"]:
        if compared["arm"] == "all" and str(compared["what"]).startswith("rank"):
            figure = f"{compared['bit_equal']} of {compared['records']} records equal to the bit"
            yield (
                "states of one tensor-parallel rank and another",
                figure,
                f"{_gpus(record)}, SGLang {record['versions']['sglang']}",
            )


def _stall(record: Record) -> Claims:
    counts = record["counts"]
    said = f"{counts['lost']} of {counts['ours']:,} requests lost ({counts['given_up']:,} given up by name)"
    figure = f"{said}; slowest health check {record['health_slowest_s']:.1f} s"
    where = f"{_gpus(record) or _cores(record)}, {record['parameters']['seconds']:.0f} s of load"
    yield "a scratch that nobody empties", figure, where


def _codec(record: Record) -> Claims:
    ours, theirs = (1 / mean_ratio(record["candidates"][name]) for name in ("default", "zstd -1"))
    samples = len(record["parameters"]["samples"])
    figure = f"{ours:.0%} (`zstd -1`: {theirs:.0%})"
    yield "size of stored bfloat16 states, lossless", figure, f"{samples} real samples, SmolLM2-135M"


def _mover(record: Record) -> Claims:
    for size in ("90 MB", "1 MB"):
        if size in record["timings"]:
            times = ratio(record["timings"][size], "hs-mover default", "zstd -1 -T2, mv", "raw_bytes", "cpu_s")
            yield f"moving parts of {size}, bytes a core-second ÷ `zstd -1` and mv", f"{times:.2f}", _cores(record)


def _client(record: Record) -> Claims:
    ours, pool = record["arms"].get("asyncio 64 ours"), record["arms"].get("asyncio 64 httpx-pool")
    if ours and pool:
        figure = f"{ours['cpu_us'] / 1000:.2f} ms, {ours['cpu_us'] / pool['cpu_us']:.2f} of one shared httpx client's"
        where = f"{_cores(record)}, {record['parameters']['ids']:,} ids, 64 in flight"
        yield "the client's processor time for a request", figure, where


def _resume(record: Record) -> Claims:
    given, run = record["parameters"], record["runs"]["resumed"]
    figure = f"{run['first_request_s']:.0f} s, {run['cpu_s']:.0f} s of processor time, {run['peak_mib']:.0f} MiB"
    what = f"a run resumed over {given['rows']:,} rows, {given['done']:,} of them done, until its first request"
    yield what, figure, f"{_cores(record)}, busy with other work (load {run['load_average']})"


def _soak(record: Record) -> Claims:
    if soak := record.get("soak"):
        given = record["parameters"]
        figure = f"{soak['peak_bytes'] / soak['limit_bytes']:.1%} of its mark at most"
        where = f"{_cores(record)}, {given['seconds']:.0f} s, tmpfs of {given['tmpfs']}"
        yield "fill of scratch under a producer twice as fast as the drain", figure, where
    if chain := record.get("chain"):
        grown = max(item["grown_bytes"] for item in chain["growth"]) / 1e6
        figure = f"{chain['done']:,} samples done and verified; no process grew by more than {grown:.0f} MB"
        where = f"{_cores(record)}, tiny-llama on SGLang {record['versions']['sglang']}"
        yield f"{record['parameters']['seconds'] / 60:.0f} minutes of server, mover and client", figure, where


def _chaos(record: Record) -> Claims:
    kills = record["kills"]
    figure = f"{record['rows']:,} rows, each once, whole and equal to transformers"
    said = ", ".join(f"{count} {name}" for name, count in kills.items())
    yield f"{sum(kills.values()):,} SIGKILLs to programs at work", figure, f"{_cores(record)}: {said}"


_CASES: Mapping[str, Callable[[Record], Claims]] = {
    "throughput": _throughput,
    "onpolicy": _onpolicy,
    "equality": _equality,
    "stall": _stall,
    "codec": _codec,
    "mover": _mover,
    "client": _client,
    "resume": _resume,
    "soak": _soak,
    "chaos": _chaos,
}


def _interval(ratio: Record) -> str:
    return f"{ratio['value']:.3f} ({ratio['low']:.3f}–{ratio['high']:.3f})"


def _gpus(record: Record) -> str:
    gpus = record["machine"]["gpus"]
    return f"{len(gpus)} × {gpus[0]}" if gpus else ""


def _cores(record: Record) -> str:
    return f"{record['machine']['cores']} CPU cores"
