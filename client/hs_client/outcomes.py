"""How an attempt ended, and the ledger's lines for it. Pure logic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hs_client.attempt import Attempt, Verdict
from hs_client.backend import Backend
from hs_client.work import Item
from hs_formats.ledger import Done, Failed, LedgerLine

__all__ = ["Outcome", "ledger_lines"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """An attempt that has ended, and the sample it was for."""

    item: Item
    backend: Backend
    attempt: Attempt
    verdict: Verdict


def ledger_lines(batch: Sequence[Outcome]) -> list[LedgerLine]:
    """Lines for outcomes that are written together.

    A second record of a sample that is done is an orphan: no line makes it count.
    """
    done = {id(outcome.item) for outcome in batch if outcome.item.settled}
    lines: list[LedgerLine] = []
    for outcome in batch:
        if not (outcome.verdict.done and id(outcome.item) in done):
            lines.append(_line(outcome))
        if outcome.verdict.done:
            done.add(id(outcome.item))
    return lines


def _line(outcome: Outcome) -> LedgerLine:
    sample, attempt, verdict = outcome.item.sample, outcome.attempt, outcome.verdict
    sample_id = sample.sample_id
    if not verdict.done:
        return Failed(sample_id=sample_id, rid=attempt.rid, kind=verdict.kind, reason=verdict.reason)
    if attempt.answer is None:
        return Done(sample_id=sample_id, rid=attempt.rid, adopted=True, content=sample.content)
    return Done(
        sample_id=sample_id,
        rid=attempt.rid,
        finish_reason=attempt.answer.finish_type,
        prompt_tokens=attempt.answer.prompt_tokens,
        cached_tokens=attempt.answer.cached_tokens,
        content=sample.content,
    )
