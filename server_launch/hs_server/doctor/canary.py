"""The canary prompts: what is sent, under which ids. Pure functions.

The ids are drawn anew for every examination, so that no cache knows them and no two examinations can be mixed up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hs_formats.names import CANARY_RUN, MAX_ROW, Rid

__all__ = ["ALONE", "PREFIX_TOKENS", "TOGETHER", "Prompt", "canary_rids", "make_prompts"]

ALONE = 0
"""First attempt: every rank writes."""

TOGETHER = 1
"""Second attempt: the ranks write as the server is set."""

PREFIX_TOKENS = 19
"""Tokens that two of the prompts begin with; no usual chunk size, so that a chunk does not end with them."""

_IDS = range(110, 400)
"""Token ids that every vocabulary has, above the special tokens that many begin with."""

_PAST_CHUNK = 9
_ROW_STEP = 16


@dataclass(frozen=True, slots=True)
class Prompt:
    """A canary prompt; `long` ones are prefilled in chunks."""

    name: str
    ids: tuple[int, ...]
    long: bool = False

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.ids)

    def attempts(self) -> tuple[int, int]:
        """Its attempts alone and together. A long prompt is never written by every rank: it may be large."""
        return (TOGETHER, TOGETHER + 1) if self.long else (ALONE, TOGETHER)


def make_prompts(*, seed: int, chunk_size: int, longest: int) -> tuple[Prompt, ...]:
    """The prompts: two of equal length, one sharing the first's prefix, short ones, and one over the chunk size.

    Args:
        seed: of the drawn ids.
        chunk_size: of the server's prefill, in tokens; 0 where it is not chunked.
        longest: tokens that the server takes at most; longer prompts are left out.
    """
    draw = random.Random(seed)  # noqa: S311 - not for secrets

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.choice(_IDS) for _ in range(count))

    base = ids(24)
    prompts = [
        Prompt("base", base),
        Prompt("equal length", ids(24)),
        Prompt("shared prefix", base[:PREFIX_TOKENS] + ids(21)),
        Prompt("short", ids(5)),
        Prompt("one token", ids(1)),
    ]
    if chunk_size > 0:
        prompts.append(Prompt("over the chunk size", ids(chunk_size + _PAST_CHUNK), long=True))
    return tuple(prompt for prompt in prompts if prompt.n <= longest)


def canary_rids(prompts: tuple[Prompt, ...], *, seed: int) -> dict[str, tuple[str, str]]:
    """The request ids of each prompt, by its name: alone and together."""
    first = seed * _ROW_STEP % (MAX_ROW - _ROW_STEP)
    return {
        prompt.name: (
            str(Rid(CANARY_RUN, first + index, prompt.attempts()[0])),
            str(Rid(CANARY_RUN, first + index, prompt.attempts()[1])),
        )
        for index, prompt in enumerate(prompts)
    }
