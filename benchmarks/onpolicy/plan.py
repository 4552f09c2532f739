"""How much is measured, and the questions: random ids that are never the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.load import Vocabulary
from hs_formats.errors import UsageError

__all__ = ["Plan", "Questions", "answered_rows", "question_rows", "write_rows"]

Questions = Mapping[str, Sequence[int]]
"""Token ids by the sample's id."""

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`blocks` blocks of `samples` questions, each of `prompt_tokens` and answered with `new_tokens`, `in_flight` at a
    time.

    Raises:
        UsageError: a number is not above 0.
    """

    prompt_tokens: int
    new_tokens: int
    in_flight: int
    samples: int
    blocks: int

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.new_tokens, self.in_flight, self.samples, self.blocks) < 1:
            raise UsageError("tokens, samples, blocks and --in-flight must be above 0")

    @property
    def tokens(self) -> int:
        """Of a sample, prompt and answer."""
        return self.prompt_tokens + self.new_tokens

    def questions(self, block: str, vocabulary: Vocabulary) -> Questions:
        """Of one block; the ids of its samples begin with `block`."""
        draw = np.random.default_rng()
        return {f"{block}-{number}": vocabulary.draw(self.prompt_tokens, draw) for number in range(1, self.samples + 1)}


def question_rows(questions: Questions) -> Iterator[Row]:
    """Rows for `hs-client run --generate`."""
    for name, ids in questions.items():
        yield {"id": name, "input_ids": ids}


def answered_rows(questions: Questions, answers: Questions) -> Iterator[Row]:
    """Rows for `hs-client run`: the mask is on the answer."""
    for name, ids in questions.items():
        answer = answers[name]
        yield {"id": name, "input_ids": [*ids, *answer], "loss_mask": [0] * len(ids) + [1] * len(answer)}


def write_rows(path: Path, rows: Iterator[Row]) -> Path:
    """JSON lines."""
    with path.open("w", encoding="ascii") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return path
