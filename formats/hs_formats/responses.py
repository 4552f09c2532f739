"""Answers that a run had the server generate, ``responses/<run>.jsonl``: durable before anything is made of them.

The next run reads those of all earlier ones, so that what was decoded once is never decoded again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from hs_formats.jsonl import UNREADABLE
from hs_formats.regular import open_regular

__all__ = ["Response", "ResponseFacts", "iter_facts"]


class ResponseFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer without its tokens: cheap to decode, many to hold.

    Attributes:
        sample_id: of the row, without a mark of the variant.
        variant: from 1.
        turn: which of the generated answers of the conversation, from 0.
        prompt_tokens: tokens that were sent.
        prompt_xxh3: `hs_formats.hashing.ids_xxh3` of them.
        asked: the largest number of tokens that the answer could have had.
        tokens: of the answer.
        finish_reason: SGLang's: ``stop`` or ``length``.
        settings: first 16 hex digits of the SHA-256 of ``generation`` in ``dataset.json``.
        config_hash: of the model, as in ``dataset.json``.
    """

    sample_id: str
    variant: int = 1
    turn: int = 0
    prompt_tokens: int
    prompt_xxh3: str
    asked: int
    tokens: int = 0
    finish_reason: str
    settings: str
    config_hash: str


class Response(ResponseFacts, frozen=True, kw_only=True, omit_defaults=True):
    """An answer.

    Attributes:
        output_ids: every token that was generated, the one that ended it included.
        matched: what ended it: a token id, or the text given with ``--stop``; None where the limit did.
        rid: of the request; `hs_formats.names.generation_rid`.
        server: its URL.
        seconds: from the request to its answer.
        at: time of day, UTC.
    """

    output_ids: list[int]
    matched: int | str | None = None
    rid: str = ""
    server: str = ""
    seconds: float = 0.0
    at: str = ""


def iter_facts(path: Path) -> Iterator[tuple[int, ResponseFacts]]:
    """Place in the file and facts of every whole line that can be read, in order.

    Raises:
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(ResponseFacts)
    at = 0
    with open_regular(path, buffering=1 << 20) as file:
        for line in file:
            start, at = at, at + len(line)
            if line.endswith(b"\n") and line.strip():
                try:
                    found = decoder.decode(line)
                except UNREADABLE:
                    continue
                yield start, found
