"""How many tokens the rows to send have: counted where a row says it, else estimated from a few that are tokenised."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hs_client.limits import Limits
from hs_client.row_cache import Facts

__all__ = ["SAMPLED_ROWS", "Survey", "Volume"]

SAMPLED_ROWS = 128
_SAMPLED_LINE_BYTES = 256 << 10
"""Longer lines are not kept; their tokens follow from their bytes."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What is to be sent. `sampled`: rows that were tokenised for it, 0 where every row was counted.

    `answers`: of the server, `answer_tokens` of `tokens` are theirs: the largest number that it can be where `bound`,
    else what it is about.
    """

    rows: int
    tokens: int
    longest: int
    too_long: int = 0
    sampled: int = 0
    answers: int = 0
    answer_tokens: int = 0
    bound: bool = False

    def limited(self, rows: int | None) -> Volume:
        """The first `rows` of them, taken for average ones."""
        if rows is None or rows >= self.rows:
            return self
        share = rows / self.rows
        return replace(
            self,
            rows=rows,
            tokens=round(self.tokens * share),
            answers=round(self.answers * share),
            answer_tokens=round(self.answer_tokens * share),
        )

    def answered(self, samples: int, answers: int, *, each: int, bound: bool, longest: int) -> Volume:
        """The same with every row `samples / rows` times, and `answers` of `each` tokens.

        No sample gets longer than `longest` tokens.
        """
        times = samples / (self.rows + self.too_long) if samples else 0.0
        rows, tokens = round(self.rows * times), round(self.tokens * times)
        room = max(0, longest * rows - tokens)
        answer_tokens = min(room, answers * each)
        return replace(
            self,
            rows=rows,
            tokens=tokens + answer_tokens,
            longest=min(longest, self.longest + each * -(-answers // max(1, rows))),
            answers=answers,
            answer_tokens=answer_tokens,
            bound=bound,
        )


@dataclass(slots=True)
class Survey:
    """Collects the rows to send, in flat memory: a reservoir of lines stands for all that must be tokenised."""

    limits: Limits | None = None
    rows: int = 0
    tokens: int = 0
    longest: int = 0
    too_long: int = 0
    text_rows: int = 0
    text_bytes: int = 0
    lines: list[bytes] = field(default_factory=list)
    _kept_rows: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - no secret

    def add(self, facts: Facts, line: bytes) -> None:
        """A row to send."""
        if not facts.needs_tokenizer:
            self._count(facts.tokens)
            return
        self.text_rows += 1
        self.text_bytes += len(line)
        if len(line) > _SAMPLED_LINE_BYTES:
            return
        self._kept_rows += 1
        if len(self.lines) < SAMPLED_ROWS:
            self.lines.append(line)
        elif (at := self._random.randrange(self._kept_rows)) < SAMPLED_ROWS:
            self.lines[at] = line

    def _count(self, n: int) -> None:
        kept = n if self.limits is None else self.limits.kept(n)
        if kept:
            self.rows += 1
            self.tokens += kept
            self.longest = max(self.longest, kept)
        else:
            self.too_long += 1

    def volume(self, tokens_of: Callable[[bytes], int]) -> Volume:
        """The whole, `tokens_of` a line being 0 where it is rejected. May be called once."""
        counts = [tokens_of(line) for line in self.lines]
        good = [count for count in counts if count]
        longest = max([self.longest, *good])
        if len(counts) == self.text_rows:
            tokens = self.tokens + sum(good)
            return Volume(self.rows + len(good), tokens, longest, self.too_long + len(counts) - len(good))
        sampled_bytes = sum(len(line) for line in self.lines)
        if not sampled_bytes:  # every line is a long one
            return Volume(self.rows + self.text_rows, self.tokens + self.text_bytes // 4, longest, self.too_long, 1)
        tokens = self.tokens + round(sum(good) * self.text_bytes / sampled_bytes)
        rows = self.rows + round(self.text_rows * len(good) / len(counts))
        return Volume(rows, tokens, longest, self.too_long, len(counts))
