"""How long a sample may be."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a sample may be, in tokens, and the size of the model's vocabulary (0 where nobody knows it).

    `context_tokens`: of the server. `longest_prompt`: what it takes, 0 where it does not say. `max_length`: what the
    user allows, None for all. `truncate`: longer samples are cut to what is allowed instead of being rejected.
    `answers`: the server adds to samples itself.
    """

    context_tokens: int
    vocab_size: int = 0
    longest_prompt: int = 0
    max_length: int | None = None
    truncate: bool = False
    answers: bool = False

    @property
    def longest(self) -> int:
        """The longest sample that is sent."""
        known = [self.context_tokens - 1]
        known += [self.longest_prompt] if (self.truncate or self.answers) and self.longest_prompt else []
        known += [self.max_length] if self.max_length else []
        return min(known)

    @property
    def fits(self) -> int:
        """Rows that were too long for fewer tokens than this are worth another look."""
        return 1 << 62 if self.truncate else self.longest + 1

    def kept(self, n: int) -> int:
        """Tokens that are sent of a row of `n`, 0 where it is rejected."""
        return n if n <= self.longest else self.longest if self.truncate else 0
