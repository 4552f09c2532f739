"""The ledger: what a run sent and what came of it, ``ledger/<run>.jsonl``, one file a run.

An *intent* is durable before its request is sent; *done* names the rid whose record counts; *failed* may be retried by
the next run, *rejected* is final. A sample is done when any run's ledger says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from hs_formats.jsonl import UNREADABLE, TailReader
from hs_formats.regular import open_regular

__all__ = ["Done", "Failed", "Intent", "LedgerLine", "Rejected", "RunStarted", "iter_ledger", "read_ledger"]


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """First line of each ledger: what was run. `started_at` is ISO 8601 UTC."""

    run: str
    started_at: str
    inputs: list[str]
    servers: list[str]
    version: str


class Intent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="intent"):
    """A request that may have been sent.

    `mask` holds the spans [start, stop) of tokens to train on, `row` is ``file:line``. `content` is `row_content` of a
    row with an id of its own, so that a later run notices when the row has changed. `cut_from`: tokens that the row had
    before it was truncated to n, 0 where it was not. `answers`: why each answer ended that the server has generated for
    it (``stop``, ``length``), in order of turns; empty where the row brought its own.
    """

    sample_id: str
    rid: str
    n: int
    ids_xxh3: str
    mask: list[tuple[int, int]]
    row: str = ""
    content: str = ""
    cut_from: int = 0
    answers: list[str] = []


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="done"):
    """A sample whose record is complete and durable.

    `adopted`: the record was found by a later run, which has not seen the server's answer. `content`: as of its intent.
    """

    sample_id: str
    rid: str
    adopted: bool = False
    finish_reason: str = ""
    prompt_tokens: int = -1
    cached_tokens: int = -1
    content: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """An attempt that gave no record; the next run tries again. `kind` is a short word for counting."""

    sample_id: str
    rid: str
    kind: str
    reason: str


class Rejected(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="rejected"):
    """An input row that can never be a sample. `sample_id` is empty where the row could not be read that far.

    `content`: as in `Intent`. `context_tokens`: the server's context length where that was too short, else 0.
    """

    sample_id: str
    row: str
    reason: str
    content: str = ""
    context_tokens: int = 0


LedgerLine = RunStarted | Intent | Done | Failed | Rejected


def read_ledger(path: Path) -> list[LedgerLine]:
    """All whole lines of one ledger file, in order.

    Raises:
        OSError: the file cannot be read.
    """
    tail: TailReader[LedgerLine] = TailReader(path, LedgerLine)
    return tail.poll()


def iter_ledger(path: Path) -> Iterator[LedgerLine]:
    """`read_ledger` one line at a time, for ledgers of any length.

    Raises:
        OSError: the file cannot be read.
    """
    decoder: msgspec.json.Decoder[LedgerLine] = msgspec.json.Decoder(LedgerLine)
    with open_regular(path, buffering=1 << 20) as file:
        for line in file:
            if line.endswith(b"\n") and line.strip():
                try:
                    found = decoder.decode(line)
                except UNREADABLE:
                    continue
                yield found
