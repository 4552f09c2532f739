"""One arm: a server of its own, and what is measured on it."""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.drain import Drain
from benchmarks.load import Load, Prompt, Vocabulary, drive, foreign_rids, our_rids
from benchmarks.patched import patched_environment
from benchmarks.serving import Plugin, Server, Target
from hs_formats.control import CaptureStatistics

__all__ = ["ARMS", "Arm", "ArmResult", "Plan", "measure"]

_SETTLE_S = 0.2
_DRAIN_TIMEOUT_S = 60.0
_DECODE_PROMPT_TOKENS = 32
_DECODE_ENOUGH_S = 10.0


@dataclass(frozen=True, slots=True)
class Arm:
    """Graphs on (SGLang's default) or off, and the state of the plugin; with `source` SGLang is patched instead, for
    models of DeepSeek's kind."""

    name: str
    graphs: bool
    plugin: Plugin
    source: bool = False


ARMS: dict[str, Arm] = {
    arm.name: arm
    # In the order of their worth, should time run out.
    for arm in (
        Arm("on-none", True, "none"),
        Arm("on-capture", True, "capture"),
        Arm("on-dormant", True, "dormant"),
        Arm("off-none", False, "none"),
        Arm("off-capture", False, "capture"),
        Arm("off-dormant", False, "dormant"),
        Arm("source", True, "capture", source=True),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured: `block` requests a block; `pairs` of blocks while capturing, `blocks` otherwise."""

    lengths: tuple[int, int]
    concurrency: int
    block: int
    pairs: int
    blocks: int
    decode_tokens: int
    decode_runs: int
    seed: int
    ends_at: float | None = None

    def time_is_up(self) -> bool:
        """The deadline, on the monotonic clock, has passed."""
        return self.ends_at is not None and time.monotonic() > self.ends_at


@dataclass(slots=True, kw_only=True)
class ArmResult:
    """Samples of one arm. `ours` and `foreign` are tokens/s of blocks whose requests are, or are not, captured; `again`
    those of one block of foreign requests, and of the very same prompts once more."""

    name: str
    graphs: bool
    plugin: Plugin
    start_s: float = 0.0
    ours: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    decode_tokens_per_s: list[float] = field(default_factory=list)
    latency_p50_s: list[float] = field(default_factory=list)
    latency_max_s: float = 0.0
    generator_cpu_max: float = 0.0
    scratch_bytes_per_s: list[float] = field(default_factory=list)
    files_late_s: list[float] = field(default_factory=list)
    requests: int = 0
    captured_requests: int = 0
    capture: list[dict[str, Any]] = field(default_factory=list)
    testimony: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Source:
    """Random prompts; the lengths repeat from block to block, so that blocks are equal work, the ids never do."""

    def __init__(self, plan: Plan, vocabulary: Vocabulary) -> None:
        generator = np.random.default_rng(plan.seed)
        self._lengths = [int(n) for n in generator.integers(plan.lengths[0], plan.lengths[1] + 1, size=plan.block)]
        self._ids = np.random.default_rng()
        self._vocabulary = vocabulary
        self._run = secrets.token_hex(4).replace("00000000", "00000001")
        self._rows = 0

    def block(self, *, ours: bool, count: int | None = None) -> list[Prompt]:
        """A block of prompts."""
        lengths = self._lengths[:count]
        if ours:
            rids = our_rids(self._run, self._rows, len(lengths))
            self._rows += len(lengths)
        else:
            rids = foreign_rids(len(lengths))
        return [Prompt(rid, self._vocabulary.draw(n, self._ids)) for rid, n in zip(rids, lengths, strict=True)]

    def single(self, *, tokens: int, new_tokens: int) -> Prompt:
        """One foreign prompt."""
        return Prompt(foreign_rids(1)[0], self._vocabulary.draw(tokens, self._ids), new_tokens)


def measure(arm: Arm, plan: Plan, target: Target) -> ArmResult:
    """Start the arm's server, measure, stop it.

    Raises:
        ServerLost: it did not start.
    """
    arguments = () if arm.graphs or target.cpu else ("--disable-cuda-graph",)
    result = ArmResult(name=arm.name, graphs=arm.graphs, plugin=arm.plugin)
    server = Server(
        target,
        name=arm.name,
        plugin=arm.plugin,
        arguments=arguments,
        options=("--capture-mode", "source") if arm.source else (),
        environment=patched_environment(target.work) if arm.source else None,
    )
    try:
        with server:
            result.start_s = round(server.start_s, 1)
            source = _Source(plan, target.vocabulary)
            _note(
                result,
                drive(server.url, source.block(ours=False, count=plan.concurrency), concurrency=plan.concurrency),
            )
            if arm.plugin == "capture":
                _alternate(server, source, plan, result)
            else:
                for number in range(plan.blocks):
                    if number > 1 and plan.time_is_up():
                        break
                    result.foreign.append(_block(server, source.block(ours=False), plan, result).tokens_per_s)
                _again(server, source, plan, result)
            _decode(server, source, plan, result)
            result.testimony = server.testimony()
    finally:
        server.remove_scratch()
    return result


def _again(server: Server, source: _Source, plan: Plan, result: ArmResult) -> None:
    """The same prompts twice: a server that is faster the second time has kept something of the first."""
    prompts = source.block(ours=False)
    for rids in ([item.rid for item in prompts], foreign_rids(len(prompts))):
        repeated = [replace(item, rid=rid) for item, rid in zip(prompts, rids, strict=True)]
        result.again.append(_block(server, repeated, plan, result).tokens_per_s)


def _alternate(server: Server, source: _Source, plan: Plan, result: ArmResult) -> None:
    """Blocks of captured and of foreign requests by turns, A B B A, so that a drift of the machine cancels."""
    with Drain(server.scratch) as drain:
        warm = source.block(ours=True, count=plan.concurrency)
        _note(result, drive(server.url, warm, concurrency=plan.concurrency))
        drain.wait_for({item.rid: len(item.input_ids) for item in warm}, timeout_s=_DRAIN_TIMEOUT_S)
        for pair in range(plan.pairs):
            if pair > 1 and plan.time_is_up():
                break
            for ours in (True, False) if pair % 2 == 0 else (False, True):
                time.sleep(_SETTLE_S)
                prompts = source.block(ours=ours)
                before = drain.bytes
                load = _block(server, prompts, plan, result)
                (result.ours if ours else result.foreign).append(load.tokens_per_s)
                if ours:
                    wanted = {item.rid: len(item.input_ids) for item in prompts}
                    late_s = drain.wait_for(wanted, timeout_s=_DRAIN_TIMEOUT_S)
                    result.files_late_s.append(round(late_s, 3))
                    result.scratch_bytes_per_s.append(round((drain.bytes - before) / (load.seconds + late_s)))
                    result.captured_requests += len(prompts)
        result.capture = [_counters(item) for item in server.statistics()]
    result.problems += drain.problems
    result.problems += [f"given up: {failure.rid} {failure.reason}" for failure in drain.failures]


def _counters(item: CaptureStatistics) -> dict[str, Any]:
    names = ("rank", "forwards", "graph_replays", "rows", "files", "bytes_written", "failed", "ring_bytes")
    return {
        **{name: getattr(item, name) for name in names},
        "ring_waits": item.ring_waits,
        "ring_waited_s": round(item.ring_waited_s, 4),
    }


def _block(server: Server, prompts: list[Prompt], plan: Plan, result: ArmResult) -> Load:
    load = drive(server.url, prompts, concurrency=plan.concurrency)
    _note(result, load)
    result.latency_p50_s.append(round(statistics.median(load.latencies_s), 4))
    result.latency_max_s = max(result.latency_max_s, round(load.latencies_s[-1], 4))
    result.generator_cpu_max = max(result.generator_cpu_max, round(load.generator_cpu, 3))
    return load


def _note(result: ArmResult, load: Load) -> None:
    result.requests += load.requests
    result.problems += load.failures


def _decode(server: Server, source: _Source, plan: Plan, result: ArmResult) -> None:
    """One stream: the time of N tokens less the time of one, from prompts of equal length."""

    def seconds(new_tokens: int) -> float:
        prompt = source.single(tokens=_DECODE_PROMPT_TOKENS, new_tokens=new_tokens)
        load = drive(server.url, [prompt], concurrency=1)
        _note(result, load)
        return load.latencies_s[0]

    seconds(8)  # warms up
    started = time.monotonic()
    while len(result.decode_tokens_per_s) < plan.decode_runs:
        first_s = seconds(1)
        result.decode_tokens_per_s.append(round((plan.decode_tokens - 1) / (seconds(plan.decode_tokens) - first_s), 2))
        if time.monotonic() - started > _DECODE_ENOUGH_S:
            break
