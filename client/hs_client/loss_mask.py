"""Which characters of a rendered conversation the model wrote, and which tokens these are. Pure logic."""

from __future__ import annotations

import os
from collections.abc import Sequence

__all__ = ["Span", "clip", "join", "spans_of_tokens", "trim", "turn_start"]

Span = tuple[int, int]
"""[start, stop), of characters or of tokens."""


def turn_start(chunk: str, prompt: str, plain: str, word: str) -> int:
    """Number of characters at the start of an assistant's `chunk` that the model was given and did not write.

    Args:
        chunk: what the template writes for the turn.
        prompt: what it writes in the turn's place as generation prompt.
        plain: what it writes for a turn that says `word`.
        word: no part of the template.

    The prompt may open a block of reasoning that the turn does not have; then it is the part of the prompt that every
    turn begins with. Before it may stand what the template puts before the first message, such as a system message of
    its own. A template without generation prompt may begin its turns with a header all the same.
    """
    if not prompt:
        header, found, _ = plain.partition(word)
        return len(header) if found and header.strip() and chunk.startswith(header) else 0
    if chunk.startswith(prompt):
        return len(prompt)
    lead = _common(chunk, plain.partition(word)[0])
    longest = stop = len(_common(chunk, plain, prompt))
    for at in range(1, len(lead)):
        length = len(_common(prompt, lead[at:]))
        if length > longest:
            longest, stop = length, at + length
    return stop


def _common(*texts: str) -> str:
    return os.path.commonprefix(texts)  # noqa: RUF071 - of texts


def trim(text: str, span: Span, special: Sequence[str]) -> Span:
    """`span` without white space after the special token that ends it: the template writes that, not the model."""
    start, stop = span
    body = text[start:stop].rstrip()
    if body.endswith(tuple(special)):
        return start, start + len(body)
    return span


def spans_of_tokens(offsets: Sequence[Span], spans: Sequence[Span]) -> list[Span]:
    """Tokens that begin inside `spans`, both ascending; `offsets` are the [start, stop) of each token's characters.

    A token that straddles a border belongs to what it begins in.
    """
    found: list[Span] = []
    at = 0
    for start, stop in spans:
        while at < len(offsets) and offsets[at][0] < start:
            at += 1
        first = at
        while at < len(offsets) and offsets[at][0] < stop:
            at += 1
        if first < at:
            found.append((first, at))
    return join(found)


def join(spans: Sequence[Span]) -> list[Span]:
    """Ascending `spans`, those that touch made one."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def clip(spans: Sequence[Span], length: int) -> list[Span]:
    """What of `spans` lies before `length`."""
    return [(start, min(stop, length)) for start, stop in spans if start < length]
