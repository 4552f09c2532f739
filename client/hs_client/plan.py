"""The first pass over the prompts files: which rows are new, done, doubled or unusable, counted before any is sent.

A table of one digest a sample is kept, so that the second pass knows for every row whether it is the one to send.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from hs_client.errors import BadPrompts
from hs_client.history import History
from hs_client.lines import MAX_LINE_BYTES, read_lines, shown
from hs_client.row_error import RowError
from hs_client.rows import Row, digest, parse_row

__all__ = ["Fate", "Judged", "Plan", "make_plan"]

_REMEDY = "give the changed row another id, or the file another --dataset"


class Fate(Enum):
    """What is to become of a row."""

    SEND = "send"
    DONE = "done"
    IDENTICAL = "identical"
    REJECTED = "rejected"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of the input with its fate.

    `where` is ``file:line``. `row` is None where it could not be read; `reason` says why a row is rejected, and
    `sample_id` then names the sample unless the row could not be read that far or another row holds the id. `known`:
    an earlier run has noted the rejection already. `content` and `context_tokens` are the ledger's.
    """

    where: str
    fate: Fate
    row: Row | None
    sample_id: str = ""
    reason: str = ""
    known: bool = False
    content: str = ""
    context_tokens: int = 0

    def refused(self, error: RowError) -> Judged:
        """The same row, which turned out not to fit."""
        sample_id, content = ("", "") if self.row is None else (self.row.sample_id, self.row.content)
        return Judged(
            self.where,
            Fate.REJECTED,
            None,
            sample_id=sample_id,
            reason=error.reason,
            content=content,
            context_tokens=error.context_tokens,
        )


@dataclass(slots=True)
class Plan:
    """Rows of the input by their fate, and the means to go through them again.

    Attributes:
        files: the inputs, in order.
        history: what earlier runs left.
        shard: (i, n): only samples of shard i of n are this run's.
        context_tokens: the server's context length, 0 where nobody knows it.
        first: digest of a sample id → place of the first row that has it, as file index << 40 | line.
        counts: rows by fate.
        needs_tokenizer: a row to send is text or messages.
    """

    files: Sequence[Path]
    history: History
    shard: tuple[int, int] = (0, 1)
    max_line_bytes: int = MAX_LINE_BYTES
    context_tokens: int = 0
    first: dict[bytes, int] = field(default_factory=dict)
    counts: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    needs_tokenizer: bool = False

    @property
    def left(self) -> int:
        """Samples to send."""
        return self.counts[Fate.SEND]

    @property
    def rows(self) -> int:
        """Rows in the files, blank lines not counted."""
        return sum(self.counts.values())

    def judge_all(self) -> Iterator[Judged]:
        """Every row of the input with its fate, in order; the first row of a sample id wins.

        Raises:
            BadPrompts: a file cannot be read.
        """
        for index, path in enumerate(self.files):
            try:
                for line in read_lines(path, max_bytes=self.max_line_bytes):
                    where = f"{shown(path)}:{line.number}"
                    if line.data is None:
                        reason = f"the line has {line.size_bytes:,} bytes, more than {self.max_line_bytes:,}"
                        yield Judged(where, Fate.REJECTED, None, reason=reason)
                        continue
                    yield self._judge(where, index << 40 | line.number, line.data)
            except OSError as error:
                raise BadPrompts(path=shown(path), reason=error.strerror or error) from None

    def _judge(self, where: str, place: int, line: bytes) -> Judged:
        try:
            row = parse_row(line)
        except RowError as error:
            return Judged(where, Fate.REJECTED, None, sample_id=error.sample_id, reason=error.reason)
        key = digest(row.sample_id)
        first = self.first.setdefault(key, place)
        if first != place:
            if not row.named:
                return Judged(where, Fate.IDENTICAL, row)
            reason = f"id {row.sample_id!r} is taken by {self._where(first)}; the first row of an id wins"
            return Judged(where, Fate.REJECTED, None, reason=reason)
        if not self.in_shard(key):
            return Judged(where, Fate.ELSEWHERE, row)
        changed = self.history.changed(key, row.content)
        if key in self.history.done:
            if changed:
                reason = f"id {row.sample_id!r} is done already, with other content; {_REMEDY}"
                return Judged(where, Fate.REJECTED, None, reason=reason)
            return Judged(where, Fate.DONE, row)
        if key in self.history.rejected and not changed and not self._fits_now(key):
            reason = self.history.rejected[key]
            return Judged(where, Fate.REJECTED, None, sample_id=row.sample_id, reason=reason, known=True)
        return Judged(where, Fate.SEND, row)

    def in_shard(self, key: bytes) -> bool:
        """The sample of this digest is this run's."""
        i, n = self.shard
        return n == 1 or int.from_bytes(key[:8], "big") % n == i

    def _fits_now(self, key: bytes) -> bool:
        """It was too long for the server of that time, and this one has a longer context."""
        return 0 < self.history.short.get(key, 0) < self.context_tokens

    def _where(self, place: int) -> str:
        return f"{shown(self.files[place >> 40])}:{place & ((1 << 40) - 1)}"


def make_plan(
    files: Sequence[Path],
    history: History,
    *,
    shard: tuple[int, int] = (0, 1),
    max_line_bytes: int = MAX_LINE_BYTES,
    context_tokens: int = 0,
) -> Plan:
    """Read the files once and count.

    Raises:
        BadPrompts: a file cannot be read.
    """
    plan = Plan(files, history, shard, max_line_bytes, context_tokens)
    for judged in plan.judge_all():
        plan.counts[judged.fate] += 1
        if judged.fate is Fate.SEND and judged.row is not None:
            plan.needs_tokenizer |= judged.row.kind != "input_ids"
            history.drop_changed(digest(judged.row.sample_id), judged.row.content)
    return plan
