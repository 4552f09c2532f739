"""`hs-client run` against a server of the benchmark, timed, and everything that can be said against what it stored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.checkout import program, program_environment
from benchmarks.onpolicy.plan import Plan, Questions

__all__ = ["Extraction", "count_problems", "extract"]

_LOOKED_AT = 5
"""Samples of a dataset that are loaded as a trainer does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """Seconds of one run, and what is wrong with it.

    Attributes:
        wall_s: from the client's start to its end, when every sample is durable.
        generate_s: in which requests for answers were in flight; 0 for a run that generates nothing.
        raw_bytes: of part files.
    """

    wall_s: float
    generate_s: float
    raw_bytes: int
    problems: list[str]


def extract(
    rows: Path,
    plan: Plan,
    questions: Questions,
    *,
    url: str,
    scratch: Path,
    dst: Path,
    answers: Questions | None = None,
) -> Extraction:
    """Run the client on `rows`, verify what it stored, and remove that.

    Args:
        rows: of `questions`, and of `answers` where they are known; logs are put beside them.
        plan: what was asked for.
        questions: ids by sample.
        url: of the server.
        scratch: that it writes to, and that a mover empties.
        dst: that mover's destination.
        answers: without them the server gives them (``--generate``).
    """
    work, dataset, report = rows.parent, dst / rows.stem, rows.with_suffix(".summary.json")
    options = ["--concurrency", str(plan.in_flight), "--progress-interval", "60", "--summary-json", str(report)]
    if answers is None:
        options += ["--generate", "--max-new-tokens", str(plan.new_tokens), "--looping-answers", "keep"]
        options += ["--generate-concurrency", str(plan.in_flight)]
    where = ["--server", url, "--scratch", str(scratch)]
    began = time.monotonic()
    ended = _client(work, rows.stem, "run", str(rows), *where, *options)
    wall_s = time.monotonic() - began
    try:
        if ended:
            return Extraction(wall_s=wall_s, generate_s=0.0, raw_bytes=0, problems=[f"hs-client run: {ended}"])
        summary: dict[str, Any] = json.loads(report.read_bytes())
        problems = [*count_problems(summary, plan, generates=answers is None)]
        if refused := _client(work, rows.stem, "verify", str(dataset), "--scratch", str(scratch)):
            problems.append(f"hs-client verify: {refused}")
        problems += _sample_problems(dataset, plan, questions, answers)
        return Extraction(
            wall_s=round(wall_s, 3),
            generate_s=float(summary["generation"]["seconds"]),
            raw_bytes=int(summary["raw_bytes"]),
            problems=problems,
        )
    finally:
        shutil.rmtree(dataset, ignore_errors=True)


def _client(work: Path, name: str, *arguments: str) -> str:
    """Run the client; what it said when it did not end with 0."""
    environment = {**program_environment(), "HS_STATE_DIR": str(work / "state")}
    with (work / f"{name}.client.log").open("ab") as log:
        at = log.seek(0, os.SEEK_END)
        command = [*program("hs_client"), *arguments]
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    if not code.returncode:
        return ""
    said = Path(log.name).read_bytes()[at:].decode(errors="replace").strip()
    return f"exit {code.returncode}: …{said[-500:]}"


def count_problems(summary: Mapping[str, Any], plan: Plan, *, generates: bool) -> Iterator[str]:
    """What a run's summary says that is not as it was asked for."""
    counts, made = summary["samples"], summary["generation"]
    lost = {name: count for name, count in counts.items() if name != "done" and count}
    if counts["done"] != plan.samples or lost:
        yield f"{counts['done']} of {plan.samples} samples are done, {lost}"
    if summary["retried"] or made["retried"]:
        yield f"{summary['retried'] + made['retried']} requests were sent again"
    wanted = {"tokens": plan.samples * plan.tokens, "trained_tokens": plan.samples * plan.new_tokens}
    yield from (
        f"{summary[name]} {name} instead of {count}" for name, count in wanted.items() if summary[name] != count
    )
    answers = plan.samples if generates else 0
    for name, count in {"answers": answers, "tokens": answers * plan.new_tokens, "reused": 0}.items():
        if made[name] != count:
            yield f"{made[name]} {name} of generation instead of {count}"


def _sample_problems(dataset: Path, plan: Plan, questions: Questions, answers: Questions | None) -> Iterator[str]:
    from hs_formats.reader import HiddenStateDataset

    data = HiddenStateDataset(dataset)
    if len(data) != plan.samples:
        yield f"the dataset has {len(data)} samples instead of {plan.samples}"
        return
    for name in list(questions)[:: max(1, plan.samples // _LOOKED_AT)]:
        sample = data[name]
        ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
        expected = [*questions[name], *(ids[plan.prompt_tokens :] if answers is None else answers[name])]
        if len(ids) != plan.tokens or ids != expected or mask != [0] * plan.prompt_tokens + [1] * plan.new_tokens:
            yield f"{name}: the stored ids or their mask are not those of the question and its answer"
        if len(sample.hidden_states) != plan.tokens:
            yield f"{name}: {len(sample.hidden_states)} states for {plan.tokens} tokens"
