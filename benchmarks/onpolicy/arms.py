"""The arms: servers, and what is timed on them."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import Load, Prompt, drive, foreign_rids
from benchmarks.onpolicy.extraction import Extraction, extract
from benchmarks.onpolicy.plan import Plan, Questions, answered_rows, question_rows, write_rows
from benchmarks.realistic_weights import VARIABLE
from benchmarks.serving import Plugin, Server, Target
from benchmarks.soak.running import Observed
from hs_client.generate.options import GenerateOptions
from hs_client.generate.server_checks import decode_graphs_off

__all__ = ["ARMS", "BASELINE", "Arm", "Measured", "absent", "measure"]

BASELINE = "alone"

_EAGER = ("--disable-cuda-graph",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One server. `says`: what it is, for the table; `plugin` and `graphs` are its settings."""

    name: str
    says: str
    plugin: Plugin = "none"
    graphs: bool = True


ARMS: dict[str, Arm] = {
    arm.name: arm
    # In the order of their worth, should time run out.
    for arm in (
        Arm(name=BASELINE, says="generate only, no capture, graphs on"),
        Arm(name="one", says="one server, capture and graphs on", plugin="capture"),
        Arm(name="two", says="a second server, graphs off, captures what `alone` said", plugin="capture", graphs=False),
        Arm(name="eager", says="generate only, no capture, graphs off", graphs=False),
    )
}


@dataclass(slots=True, kw_only=True)
class Measured:
    """What an arm has measured.

    Attributes:
        start_s: of its server, the doctor's examination included.
        seconds: of each block of the plan, by what was done. ``generate``: answers alone, nothing kept, by the load
            generator. ``prefill``: prompts as long as question and answer, one token each, nothing kept. ``answers``:
            `hs-client run --generate`, while requests for answers are in flight. ``run``: the client from its start
            until all is durable.
        raw_bytes: of part files stored.
        replays: forwards of the capture that were replays of a graph, and all of them.
        generator_cpu: largest share of a core that the load generator used.
    """

    start_s: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=dict)
    raw_bytes: int = 0
    replays: tuple[int, int] = (0, 0)
    generator_cpu: float = 0.0
    requests: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, what: str, seconds: float) -> None:
        """One block more."""
        self.seconds.setdefault(what, []).append(round(seconds, 4))


def absent(arm: Arm, target: Target) -> str:
    """Why `arm` cannot be measured with this target; "" where it can."""
    if arm.name == "eager" and target.cpu:
        return f"a CPU has no CUDA graphs: it is the same as {BASELINE}"
    return ""


def measure(arm: Arm, target: Target, plan: Plan, disk: Path, told: list[tuple[Questions, Questions]]) -> Measured:
    """Start the arm's server, measure, stop it.

    Args:
        arm: which one.
        target: its model must never end an answer.
        plan: how much.
        disk: datasets are made and removed below it.
        told: questions and answers of each block; the baseline adds its own, arm ``two`` captures them.

    Raises:
        HsError: it did not start.
    """
    arguments = _EAGER if not arm.graphs and not target.cpu else ()
    # Weights as SGLang draws them make layers so alike that `hs-client verify` finds equal slots, and rightly so.
    environment = {VARIABLE: "1"} if "dummy" in target.server_args else {}
    server = Server(target, name=arm.name, plugin=arm.plugin, arguments=arguments, environment=environment)
    found = Measured()
    try:
        with server:
            found.start_s = round(server.start_s, 1)
            if not target.cpu and decode_graphs_off(_server_info(server)) == arm.graphs:
                found.problems.append(f"decode CUDA graphs are {'off' if arm.graphs else 'on'}")
            sender = _Sender(server, plan, found)
            if arm.name == "two":
                _capture_what_was_said(server, plan, disk, told, found)
            else:
                sender.warm_up()
                with_client = arm.name == "one"
                for number in range(1, plan.blocks + 1):
                    answered = sender.generate(f"{arm.name}{number}")
                    if arm.name == BASELINE:
                        told.append(answered)
                    if with_client:
                        sender.prefill()
                if with_client:
                    _run_the_client(server, plan, disk, found)
            if arm.plugin == "capture":
                _count(server, found)
    finally:
        server.remove_scratch()
    found.problems = [f"{arm.name}: {text}" for text in found.problems]
    return found


class _Sender:
    """Sends blocks of requests of which nothing is captured, those for answers with the client's own parameters."""

    def __init__(self, server: Server, plan: Plan, found: Measured) -> None:
        self._server, self._plan, self._found = server, plan, found
        self._draw = np.random.default_rng()
        self._options = GenerateOptions(max_new_tokens=plan.new_tokens)

    def warm_up(self) -> None:
        """One round of all in flight, not timed."""
        prompts = [self._question(self._ids(self._plan.prompt_tokens)) for _ in range(self._plan.in_flight)]
        self._send(prompts, take=None)

    def generate(self, block: str) -> tuple[Questions, Questions]:
        """A block of answers, timed; the questions and what was said."""
        questions = self._plan.questions(block, self._server.target.vocabulary)
        prompts = {name: self._question(ids) for name, ids in questions.items()}
        names = {prompt.rid: name for name, prompt in prompts.items()}
        answers: dict[str, list[int]] = {}

        def take(prompt: Prompt, content: bytes) -> str | None:
            ids = json.loads(content).get("output_ids") or []
            answers[names[prompt.rid]] = ids
            return None if len(ids) == self._plan.new_tokens else f"an answer of {len(ids)} tokens"

        self._found.add("generate", self._send(list(prompts.values()), take=take).seconds)
        return questions, answers

    def prefill(self) -> None:
        """A block of prompts as long as question and answer, timed."""
        rids = foreign_rids(self._plan.samples)
        self._found.add(
            "prefill", self._send([Prompt(rid, self._ids(self._plan.tokens)) for rid in rids], take=None).seconds
        )

    def _ids(self, tokens: int) -> list[int]:
        return self._server.target.vocabulary.draw(tokens, self._draw)

    def _question(self, ids: Any) -> Prompt:
        sampling = self._options.sampling(self._plan.new_tokens, seed=0)
        return Prompt(foreign_rids(1)[0], ids, self._plan.new_tokens, more={"sampling_params": sampling})

    def _send(self, prompts: list[Prompt], *, take: Callable[[Prompt, bytes], str | None] | None) -> Load:
        load = drive(self._server.url, prompts, concurrency=self._plan.in_flight, take=take)
        self._found.requests += load.requests
        self._found.generator_cpu = max(self._found.generator_cpu, round(load.generator_cpu, 3))
        self._found.problems += load.failures
        return load


def _run_the_client(server: Server, plan: Plan, disk: Path, found: Measured) -> None:
    def blocks(dst: Path) -> None:
        for number in range(1, plan.blocks + 1):
            questions = plan.questions(f"one{number}-client", server.target.vocabulary)
            rows = write_rows(server.target.work / f"one{number}.jsonl", question_rows(questions))
            done = extract(rows, plan, questions, url=server.url, scratch=server.scratch, dst=dst)
            found.add("answers", done.generate_s)
            _note(found, done)

    _with_mover(server, disk, found, blocks)


def _capture_what_was_said(
    server: Server, plan: Plan, disk: Path, told: list[tuple[Questions, Questions]], found: Measured
) -> None:
    def blocks(dst: Path) -> None:
        for number, (questions, answers) in enumerate(told, start=1):
            rows = write_rows(server.target.work / f"two{number}.jsonl", answered_rows(questions, answers))

            done = extract(rows, plan, questions, url=server.url, scratch=server.scratch, dst=dst, answers=answers)
            _note(found, done)

    _with_mover(server, disk, found, blocks)


def _note(found: Measured, done: Extraction) -> None:
    found.add("run", done.wall_s)
    found.raw_bytes += done.raw_bytes
    found.problems += done.problems


def _with_mover(server: Server, disk: Path, found: Measured, blocks: Callable[[Path], None]) -> None:
    dst = disk / f"{server.name}-dst"
    dst.mkdir(parents=True, exist_ok=True)
    mover = Observed(server.scratch, dst, server.target.work / f"{server.name}.mover.log")
    try:
        with mover:
            blocks(dst)
    finally:
        shutil.rmtree(dst, ignore_errors=True)
    if mover.exit_code:
        found.problems.append(f"the mover ended with {mover.exit_code}: see {server.target.work}")


def _count(server: Server, found: Measured) -> None:
    statistics = server.statistics()
    failed = sum(item.failed for item in statistics)
    if failed or not statistics:
        found.problems.append(f"{failed} requests given up by {len(statistics)} ranks")
    found.replays = (sum(item.graph_replays for item in statistics), sum(item.forwards for item in statistics))


def _server_info(server: Server) -> Mapping[str, Any]:
    with urllib.request.urlopen(f"{server.url}/server_info", timeout=30) as answer:
        info: dict[str, Any] = json.load(answer)
    return info
