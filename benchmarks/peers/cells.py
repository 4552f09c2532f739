"""What is measured of each contestant: prompts of a length, so many in flight. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hs_formats.errors import UsageError

__all__ = ["MOST_TOKENS_IN_FLIGHT", "Cell", "chosen", "parse_cells"]

MOST_TOKENS_IN_FLIGHT = 600_000
"""More states than this do not lie in a tmpfs at a time."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """Prompts of `tokens`, `in_flight` at a time. Its text is ``<tokens>x<in flight>``."""

    tokens: int
    in_flight: int

    def __str__(self) -> str:
        return f"{self.tokens}x{self.in_flight}"

    def requests(self, least_tokens: int) -> int:
        """Of a block: as many as are in flight, and `least_tokens` in all at the least."""
        return max(self.in_flight, -(-least_tokens // self.tokens))


def chosen(lengths: Sequence[int], in_flight: Sequence[int], *, longest: int) -> list[Cell]:
    """All pairs that a server of `longest` tokens of context can have in flight."""
    cells = [Cell(tokens, count) for tokens in lengths for count in in_flight if tokens <= longest]
    return [cell for cell in cells if cell.tokens * cell.in_flight <= MOST_TOKENS_IN_FLIGHT]


def parse_cells(text: str) -> list[Cell]:
    """``128x64,1500x16`` as cells.

    Raises:
        UsageError: it is something else.
    """
    cells: list[Cell] = []
    for word in text.split(","):
        tokens, _, count = word.strip().partition("x")
        if not (tokens.isdigit() and count.isdigit() and int(tokens) and int(count)):
            raise UsageError(f"--cells {text!r}: {word.strip()!r} is not TOKENSxIN_FLIGHT, such as 1500x64")
        cells.append(Cell(int(tokens), int(count)))
    return list(dict.fromkeys(cells))
