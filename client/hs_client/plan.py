"""The first pass over the prompts files: which rows are new, done, doubled or unusable, counted before any is sent.

A digest a sample and a byte a row are kept, so that the second pass knows for every row what is to become of it and
reads only those that are to be sent or rejected. It takes all of them in order (`Plan.again`), or those of ranges of
row numbers in any order (`hs_client.row_reader`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from hs_client.digests import DigestTable
from hs_client.errors import BadPrompts
from hs_client.history import History
from hs_client.input_files import DAMAGED, InputFile
from hs_client.limits import Limits
from hs_client.lines import MAX_LINE_BYTES, Line, LineIndex, read_lines
from hs_client.row_cache import Facts, RowCache, cache_file, line_hash
from hs_client.row_error import OTHER_CONTENT, RowError
from hs_client.rows import Regenerate, Row, digest, parse_row, split_variant, variant_digest, variant_id
from hs_client.survey import Survey
from hs_formats.hashing import XXH3

__all__ = ["Fate", "Judged", "Plan", "make_plan"]

_SAY_S = 10.0
_LOOK_AT_CLOCK = 1024


class Fate(IntEnum):
    """What is to become of a row; 0 stands for lines that are none."""

    SEND = 1
    DONE = 2
    IDENTICAL = 3
    REJECTED = 4
    ELSEWHERE = 5


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of the input that is to be sent or rejected.

    `where` is ``file:line``, `number` its row number. `row` is None where it could not be read; `reason` says why a row
    is rejected, and `sample_id` then names the sample unless the row could not be read that far or another row holds
    the id. `known`: an earlier run has noted the rejection already. `content` and `context_tokens` are the ledger's.
    `variant`: which of the row's samples, from 1. `planned`: the plan knew its fate; else it was to be sent.
    """

    where: str
    number: int
    fate: Fate
    row: Row | None
    sample_id: str = ""
    reason: str = ""
    known: bool = False
    content: str = ""
    context_tokens: int = 0
    variant: int = 1
    planned: bool = True

    def refused(self, error: RowError) -> Judged:
        """The same row, which turned out not to fit."""
        sample_id, content = "", ""
        if self.row is not None:
            sample_id, content = variant_id(self.row.sample_id, self.variant), self.row.content
        return Judged(
            self.where,
            self.number,
            Fate.REJECTED,
            None,
            sample_id=sample_id,
            reason=error.reason,
            content=content,
            context_tokens=error.context_tokens,
            planned=False,
        )


@dataclass(slots=True)
class Plan:
    """Rows of the input by their fate, and the means to go through them again.

    Attributes:
        files: the inputs, in order.
        history: what earlier runs left.
        shard: (i, n): only samples of shard i of n are this run's.
        regenerate: which answers the server is to give.
        variants: samples of each row that is to be answered.
        limits: of the model, None where nobody knows it.
        first: digest of a sample id → place of the first row that has it, as file index << 40 | line.
        fates: of every line of every file, by number - 1; of a row with several samples SEND if one is to be sent.
        starts: row number of the first line of each file: all lines are counted, one file after the other, from 0.
        counts: samples by fate; rows that are none count as one.
        survey: of the rows to send.
        needs_tokenizer: a row to send is text or messages.
        asks: samples to send that the server has to answer first.
        caches: what is known about the lines of each file.
        numbered: rows will be asked for by their numbers: `indexes` and `inputs_hash` are wanted.
        indexes: where lines of each file begin, None where it cannot be entered there.
    """

    files: Sequence[InputFile]
    history: History
    shard: tuple[int, int] = (0, 1)
    limits: Limits | None = None
    max_line_bytes: int = MAX_LINE_BYTES
    regenerate: Regenerate = ""
    variants: int = 1
    first: DigestTable = field(default_factory=DigestTable)
    fates: list[bytearray] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    survey: Survey = field(default_factory=Survey)
    needs_tokenizer: bool = False
    asks: int = 0
    caches: list[RowCache] = field(default_factory=list)
    numbered: bool = False
    indexes: list[LineIndex | None] = field(default_factory=list)
    _inputs: XXH3 = field(default_factory=XXH3)

    @property
    def numbers(self) -> int:
        """How many row numbers there are; blank lines at the end of a file have none."""
        return self.starts[-1] + len(self.fates[-1]) if self.fates else 0

    @property
    def inputs_hash(self) -> str:
        """Of all rows and their numbers, where `numbered`."""
        return self._inputs.hexdigest()

    @property
    def left(self) -> int:
        """Samples to send."""
        return self.counts[Fate.SEND]

    @property
    def rows(self) -> int:
        """Rows in the files, blank lines not counted; where rows have variants, their samples."""
        return sum(self.counts.values())

    @property
    def empty(self) -> list[str]:
        """Files without a row."""
        return [file.name for file, fates in zip(self.files, self.fates, strict=False) if not any(fates)]

    # -- first pass

    def count(self, cache_root: Path | None = None, say: Callable[[str], None] = lambda _: None) -> None:
        """Go through all rows; what `cache_root`, the dataset's folder, has kept of earlier passes is used.

        `say` is told how far it is now and then.

        Raises:
            BadPrompts: a file cannot be read.
        """
        said_s = time.monotonic()
        for index, file in enumerate(self.files):
            cache = (
                RowCache() if cache_root is None else RowCache.load(cache_file(cache_root, file.name, self.regenerate))
            )
            fates = bytearray()
            for line in self._lines_to_count(file):
                fates.extend(bytes(line.number - len(fates)))
                found = [Fate.REJECTED]
                if line.data is not None:
                    found = self._count_line(index << 40 | line.number, line.data, cache)
                fates[line.number - 1] = next((f for f in (Fate.SEND, Fate.REJECTED) if f in found), found[0])
                for fate in found:
                    self.counts[fate] += 1
                if not line.number % _LOOK_AT_CLOCK and time.monotonic() - said_s >= _SAY_S:
                    said_s = time.monotonic()
                    say(f"reading    {self.rows:,} rows so far")
            self.starts.append(self.numbers)
            self.fates.append(fates)
            self.caches.append(cache)

    def _lines_to_count(self, file: InputFile) -> Iterator[Line]:
        if not self.numbered:
            return self.lines(file)
        index = LineIndex() if _may_be_entered(file) else None
        self.indexes.append(index)
        return self._hashed(self.lines(file, index=index), self.numbers)

    def _hashed(self, lines: Iterator[Line], start: int) -> Iterator[Line]:
        for line in lines:
            content = b"" if line.data is None else line_hash(line.data)
            self._inputs.update(b"%d %d " % (start + line.number, line.size_bytes) + content)
            yield line

    def _count_line(self, place: int, data: bytes, cache: RowCache) -> list[Fate]:
        hashed = line_hash(data)
        facts = cache.get(hashed)
        if facts is None:
            try:
                facts = _facts(parse_row(data, self.regenerate))
            except RowError:
                return [Fate.REJECTED]
            cache.add(hashed, len(data), facts)
        fates = self._decide(facts, place)
        if Fate.SEND in fates:
            self.needs_tokenizer |= facts.needs_tokenizer
            self.asks += facts.ask * fates.count(Fate.SEND)
            self.survey.add(facts, data)
        for at, fate in enumerate(fates):
            if fate is Fate.SEND:
                self.history.drop_changed(variant_digest(facts.key, at + 1), facts.content)
        return fates

    def save_caches(self, root: Path) -> None:
        """Keep what the first pass has found out about the rows in the dataset's folder, and free the memory.

        Raises:
            OSError: it cannot be written.
        """
        caches, self.caches = self.caches, []
        for file, cache in zip(self.files, caches, strict=False):
            cache.save(cache_file(root, file.name, self.regenerate))

    # -- second pass

    def again(self, fates: Collection[Fate] = (Fate.SEND, Fate.REJECTED)) -> Iterator[Judged]:
        """Rows with these fates, in order; by now some may be done. `fates` may lose some on the way.

        Raises:
            BadPrompts: a file cannot be read, or has changed since the first pass.
        """
        for index, file in enumerate(self.files):
            file.check_unchanged()
            known = self.fates[index]
            for line in self.lines(file):
                if line.number > len(known):
                    break  # appended since, which the check below says
                if known[line.number - 1] in fates:
                    yield from (judged for judged in self.judge(index, line) if judged.fate in fates)
            file.check_unchanged()

    def lines(
        self, file: InputFile, *, start: tuple[int, int] = (0, 0), index: LineIndex | None = None
    ) -> Iterator[Line]:
        """The lines of one of the files, as `read_lines` gives them.

        Raises:
            BadPrompts: it cannot be read.
        """
        try:
            yield from read_lines(file, max_bytes=self.max_line_bytes, start=start, index=index)
        except (OSError, *DAMAGED) as error:
            raise BadPrompts(path=file.name, reason=getattr(error, "strerror", None) or error) from None

    def judge(self, index: int, line: Line) -> Iterator[Judged]:
        """What is to become of the samples of a line of the file number `index`, where they are sent or rejected."""
        where, number = f"{self.files[index].name}:{line.number}", self.starts[index] + line.number - 1
        if line.data is None:
            reason = f"the line has {line.size_bytes:,} bytes, more than {self.max_line_bytes:,}"
            yield Judged(where, number, Fate.REJECTED, None, reason=reason)
            return
        try:
            row = parse_row(line.data, self.regenerate)
        except RowError as error:
            yield Judged(where, number, Fate.REJECTED, None, sample_id=error.sample_id, reason=error.reason)
            return
        facts, place = _facts(row), index << 40 | line.number
        for at, fate in enumerate(self._decide(facts, place)):
            variant = at + 1
            if fate is Fate.SEND:
                yield Judged(where, number, fate, row, variant=variant)
            elif fate is Fate.REJECTED:
                sample_id, reason = self._turned_down(place, row, facts, variant)
                yield Judged(
                    where, number, Fate.REJECTED, None, sample_id=sample_id, reason=reason, known=bool(sample_id)
                )

    def _turned_down(self, place: int, row: Row, facts: Facts, variant: int) -> tuple[str, str]:
        """Why a sample is rejected; with its id where an earlier run has said so."""
        first = self.first.get(facts.key)
        if first is not None and first != place:
            return "", f"id {row.sample_id!r} is taken by {self._where(first)}; the first row of an id wins"
        key = variant_digest(facts.key, variant)
        if key in self.history.done:
            return "", f"id {row.sample_id!r} is done already, {OTHER_CONTENT}"
        return variant_id(row.sample_id, variant), self.history.rejected[key]

    # -- both

    def _decide(self, facts: Facts, place: int) -> list[Fate]:
        """Of each sample of a row; the first row of a sample id wins."""
        if self.first.setdefault(facts.key, place) != place:
            return [Fate.REJECTED if facts.named else Fate.IDENTICAL]
        if not self.in_shard(facts.key):
            return [Fate.ELSEWHERE]
        count = self.variants if facts.ask else 1
        return [self._decide_sample(variant_digest(facts.key, at + 1), facts.content) for at in range(count)]

    def _decide_sample(self, key: bytes, content: int) -> Fate:
        history = self.history
        done = history.done.get(key)
        if done is not None:
            return Fate.REJECTED if done and content and done != content else Fate.DONE
        if key in history.rejected and not history.changed(key, content) and not self._fits_now(key):
            return Fate.REJECTED
        return Fate.SEND

    def is_mine(self, sample_id: str) -> bool:
        """The sample is of a row of these files and of this run's shard."""
        row_id, variant = split_variant(sample_id)
        for key, number in ((digest(sample_id), 1), (digest(row_id), variant)):
            if key in self.first and self.in_shard(key) and number <= self.variants:
                return True
        return False

    def in_shard(self, key: bytes) -> bool:
        """The sample of this digest is this run's."""
        i, n = self.shard
        return n == 1 or int.from_bytes(key[:8], "big") % n == i

    def _fits_now(self, key: bytes) -> bool:
        """It was too long for the limits of that time, and now more is allowed."""
        return self.limits is not None and 0 < self.history.short.get(key, 0) < self.limits.fits

    def _where(self, place: int) -> str:
        return f"{self.files[place >> 40].name}:{place & ((1 << 40) - 1)}"


def _may_be_entered(file: InputFile) -> bool:
    try:
        return file.may_be_entered()
    except OSError as error:
        raise BadPrompts(path=file.name, reason=error.strerror or error) from None


def _facts(row: Row) -> Facts:
    content = int(row.content, 16) if row.content else 0
    return Facts(digest(row.sample_id), content, row.named, len(row.ids), row.kind != "input_ids", row.ask)


def make_plan(
    files: Sequence[InputFile],
    history: History,
    *,
    shard: tuple[int, int] = (0, 1),
    max_line_bytes: int = MAX_LINE_BYTES,
    limits: Limits | None = None,
    cache_root: Path | None = None,
    say: Callable[[str], None] = lambda _: None,
    regenerate: Regenerate = "",
    variants: int = 1,
    numbered: bool = False,
) -> Plan:
    """Read the files once and count; `cache_root` is the dataset's folder, `say` is told how far it is now and then.

    `numbered`: what `hs_client.row_reader` needs is kept, too.

    Raises:
        BadPrompts: a file cannot be read.
    """
    plan = Plan(
        files,
        history,
        shard,
        limits,
        max_line_bytes,
        regenerate,
        variants,
        survey=Survey(limits),
        numbered=numbered,
    )
    plan.count(cache_root, say)
    return plan
