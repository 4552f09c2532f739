"""From a row to what is sent and kept: token ids, loss mask, hash. Runs in a thread, ahead of the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hs_client.limits import Limits
from hs_client.loss_mask import clip
from hs_client.messages import answer_places
from hs_client.plan import Fate, Judged, Plan
from hs_client.row_error import RowError
from hs_client.rows import Row, parse_row, variant_id
from hs_client.survey import Volume
from hs_client.tokenizing import ChatTokenizer, Tokens
from hs_formats.hashing import ids_xxh3
from hs_formats.mask import mask_to_spans

__all__ = ["Ask", "Limits", "Prepared", "Source", "prepare", "prepare_ask"]

_BATCH_ROWS = 32
_BATCH_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sample ready to be sent. `ids` is int32 [n], `spans` are the [start, stop) of tokens to train on; `content` is
    the row's. `cut_from`: tokens that it had before it was truncated, 0 where it was not. `answers`: why each answer
    that the server has given ended. `number`: the row number."""

    sample_id: str
    where: str
    ids: npt.NDArray[np.int32]
    spans: list[tuple[int, int]]
    ids_hash: str
    content: str = ""
    cut_from: int = 0
    answers: tuple[str, ...] = ()
    number: int = -1

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Ask:
    """A sample that the server has to answer before it is one. `variant`, from 1, is which of the row's samples.

    Attributes:
        sample_id: its own.
        where: ``file:line``.
        row: what is asked.
        ids: int32 [n], what the server is given for the first answer.
        places: for conversations: the messages before which answers belong.
        number: the row number.
    """

    sample_id: str
    variant: int
    where: str
    row: Row
    ids: npt.NDArray[np.int32]
    places: tuple[int, ...] = ()
    number: int = -1

    @property
    def content(self) -> str:
        """The row's."""
        return self.row.content

    @property
    def n(self) -> int:
        """Number of tokens before the first answer."""
        return len(self.ids)

    @property
    def turns(self) -> int:
        """Number of answers."""
        return max(1, len(self.places))


def prepare_ask(
    row: Row, where: str, variant: int, *, limits: Limits, tokenizer: ChatTokenizer | None, number: int = -1
) -> Ask:
    """Tokenise and check what the server is to be given of one row.

    Raises:
        RowError: it does not fit the model, or leaves no room for an answer.
    """
    sample_id = variant_id(row.sample_id, variant)
    places = tuple(answer_places(row.messages, every=row.regenerate_all)) if row.kind == "messages" else ()
    try:
        ids = _question(row, places, tokenizer)
        n = len(ids)
        if not n:
            raise RowError("the tokenizer makes no token of it")
        if n >= limits.longest:
            raise RowError(
                f"too long: {n} tokens, and the {limits.longest} that are allowed must hold an answer too",
                context_tokens=n + 1,
            )
        if limits.vocab_size and max(ids) >= limits.vocab_size:
            raise RowError(f"token id {max(ids)} is outside the vocabulary of {limits.vocab_size}")
    except RowError as error:
        raise RowError(error.reason, sample_id, context_tokens=error.context_tokens) from None
    except RecursionError:
        raise RowError("not usable: nested too deeply", sample_id) from None
    return Ask(sample_id, variant, where, row, np.asarray(ids, dtype=np.int32), places, number)


def _question(row: Row, places: Sequence[int], tokenizer: ChatTokenizer | None) -> list[int]:
    if row.kind == "input_ids":
        return list(row.ids)
    if tokenizer is None:
        raise RowError("no tokenizer is loaded")
    if row.kind == "messages":
        return tokenizer.opening(row.messages[: places[0]], row.template)
    return tokenizer.text(row.text).ids


def prepare(row: Row, where: str, *, limits: Limits, tokenizer: ChatTokenizer | None, number: int = -1) -> Prepared:
    """Tokenise and check one row.

    Raises:
        RowError: it does not fit the model.
    """
    try:
        tokens = _tokens(row, tokenizer)
        cut_from = _check_length(len(tokens.ids), limits)
        ids = tokens.ids[: limits.longest] if cut_from else tokens.ids
        spans = clip(tokens.spans, len(ids)) if cut_from else tokens.spans
        if limits.vocab_size and max(ids) >= limits.vocab_size:
            raise RowError(f"token id {max(ids)} is outside the vocabulary of {limits.vocab_size}")
        if not spans:
            if cut_from:
                raise RowError(f"the first {len(ids)} tokens hold nothing that the model wrote: nothing to train on")
            raise RowError("the row holds nothing that the model wrote: nothing to train on")
    except RowError as error:
        raise RowError(error.reason, row.sample_id, context_tokens=error.context_tokens) from None
    except RecursionError:  # templates go through what a row holds, too
        raise RowError("not usable: nested too deeply", row.sample_id) from None
    array = np.asarray(ids, dtype=np.int32)
    return Prepared(row.sample_id, where, array, spans, ids_xxh3(ids), row.content, cut_from, number=number)


def _tokens(row: Row, tokenizer: ChatTokenizer | None) -> Tokens:
    if row.kind == "input_ids":
        return Tokens(list(row.ids), [(0, len(row.ids))] if row.mask is None else mask_to_spans(row.mask))
    if tokenizer is None:
        raise RowError("no tokenizer is loaded")
    if row.kind == "text":
        return tokenizer.text(row.text)
    if row.kind == "prompt":
        return tokenizer.prompt(row.text, row.response)
    return tokenizer.chat(row.messages, row.template)


def _check_length(n: int, limits: Limits) -> int:
    """`n` where the sample must be cut, else 0."""
    if not n:
        raise RowError("the tokenizer makes no token of it")
    if n <= limits.longest:
        return 0
    if limits.truncate:
        return n
    if limits.max_length and limits.max_length < n < limits.context_tokens:
        raise RowError(f"too long: {n} tokens, more than --max-length {limits.max_length}", context_tokens=n)
    if n < limits.context_tokens:
        raise RowError(f"too long: {n} tokens, and the server takes {limits.longest} at most", context_tokens=n)
    raise RowError(
        f"too long: {n} tokens, and the server's context of {limits.context_tokens} needs one to spare",
        context_tokens=limits.context_tokens,
    )


class Source:
    """Second pass over the plan: batches of prepared samples and of rejected rows. For one thread at a time.

    All rows of the plan come in order, or, from the first `begin` on, those that it is given.

    Args:
        plan: from the first pass.
        limits: of the model.
        load: gives the tokenizer; called once, when the first row needs it.
        limit: samples at most; rows that are rejected are given all the same.
        say: is told what is odd about rows that are taken all the same: when it is met first, and in the end.
        answer_tokens: to count for each answer of the server before it is known.
        answers_bound: that is what it can have at most.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        limits: Limits,
        load: Callable[[], ChatTokenizer],
        limit: int | None = None,
        say: Callable[[str], None] = lambda _: None,
        answer_tokens: int = 0,
        answers_bound: bool = False,
    ) -> None:
        self._answer_tokens = answer_tokens
        self._answers_bound = answers_bound
        self._sampled_asks = self._sampled_turns = 0
        self._plan = plan
        self._fates = {Fate.SEND, Fate.REJECTED}
        self._rows: Iterator[Judged] = self.all_rows()
        self._limits = limits
        self._load = load
        self._tokenizer: ChatTokenizer | None = None
        self._left = limit
        self._say = say
        self._noted: Counter[str] = Counter()

    @property
    def limits(self) -> Limits:
        """Of the model."""
        return self._limits

    def load_tokenizer(self) -> None:
        """Load the tokenizer now, so that its failure comes before the first request.

        Raises:
            HsError: it cannot be loaded.
        """
        if self._tokenizer is None:
            self._tokenizer = self._load()

    def volume(self) -> Volume:
        """How much is to be sent, the limit of samples regarded. Before the first batch, and once.

        Raises:
            HsError: the tokenizer cannot be loaded.
        """
        if self._plan.needs_tokenizer:
            self.load_tokenizer()
        plan = self._plan
        volume = plan.survey.volume(self._tokens_of)
        if plan.asks:
            turns = self._sampled_turns / self._sampled_asks if self._sampled_asks else 1.0
            volume = volume.answered(
                plan.left,
                round(plan.asks * turns),
                each=self._answer_tokens,
                bound=self._answers_bound,
                longest=self._limits.longest,
            )
        return volume.limited(self._left)

    def _tokens_of(self, line: bytes) -> int:
        try:
            row = parse_row(line, self._plan.regenerate)
            prepared = self._prepared(row, "", 1, -1)
            if isinstance(prepared, Ask):
                self._sampled_asks += 1
                self._sampled_turns += prepared.turns
            return prepared.n
        except RowError:
            return 0
        finally:
            if self._tokenizer is not None:
                self._tokenizer.take_notes()

    def _prepared(self, row: Row, where: str, variant: int, number: int) -> Prepared | Ask:
        limits, tokenizer = self._limits, self._tokenizer
        if row.ask:
            return prepare_ask(row, where, variant, limits=limits, tokenizer=tokenizer, number=number)
        return prepare(row, where, limits=limits, tokenizer=tokenizer, number=number)

    def between(self, ask: Ask, answer: int, last: int | None) -> list[int]:
        """Ids from the end of an answer to where the next one begins, as the chat template has them.

        Args:
            ask: a conversation with a further answer.
            answer: the index of the answer that has been given.
            last: the token by which the model has ended it, None where a text of ``--stop`` did.

        Raises:
            RowError: the template does not go on from there.
        """
        if self._tokenizer is None:
            raise RowError("no tokenizer is loaded")
        places = ask.places
        ids = self._tokenizer.between(ask.row.messages[: places[answer + 1]], places[: answer + 1], ask.row.template)
        if last is None:
            return ids
        known = self._tokenizer.ends_with(ids, last)
        if not known:
            raise RowError(
                f"the model has ended its answer (turn {answer + 1}) with token {last}, and the chat template ends a"
                " turn with another: the conversation cannot go on"
            )
        return ids[known:]

    def note(self, where: str) -> None:
        """Say what was odd about a row since the last call."""
        self._note_all(where, [] if self._tokenizer is None else list(self._tokenizer.take_notes()))

    def all_rows(self) -> Iterator[Judged]:
        """Every row of the plan that is to be sent, up to the limit, or rejected."""
        return self._plan.again(self._fates)

    def begin(self, rows: Iterator[Judged]) -> None:
        """Give these rows from now on."""
        self._rows = rows

    def next_batch(self) -> tuple[list[Prepared | Ask], list[Judged]] | None:
        """The next samples to send or to have answered, and rows to reject; None where there are no more.

        Raises:
            HsError: the tokenizer cannot be loaded or a file cannot be read.
        """
        samples: list[Prepared | Ask] = []
        rejected: list[Judged] = []
        tokens = 0
        while len(samples) + len(rejected) < _BATCH_ROWS and tokens < _BATCH_TOKENS and self._fates:
            judged = next(self._rows, None)
            if judged is None:
                break
            if judged.fate is Fate.REJECTED:
                rejected.append(judged)
            if judged.fate is not Fate.SEND or judged.row is None:
                continue
            if judged.row.kind != "input_ids":
                self.load_tokenizer()
            try:
                sample = self._prepared(judged.row, judged.where, judged.variant, judged.number)
            except RowError as error:
                rejected.append(judged.refused(error))
                continue
            samples.append(sample)
            tokens += sample.n
            self._note(sample)
            if self._left is not None:
                self._left -= 1
                if not self._left:
                    self._reach_limit()
        return (samples, rejected) if samples or rejected else None

    def end(self) -> None:
        """Say once more what was odd about rows, and how many they were."""
        for note, count in self._noted.items():
            self._say(f"note       {count:,} rows: {note}")

    def _reach_limit(self) -> None:
        self._fates.discard(Fate.SEND)
        if not self._plan.counts[Fate.REJECTED]:
            self._fates.clear()  # nothing more to come: the rest of the files need not be read

    def _note(self, sample: Prepared | Ask) -> None:
        notes = [] if self._tokenizer is None else list(self._tokenizer.take_notes())
        if isinstance(sample, Prepared) and sample.cut_from:
            notes.append("cut to what is allowed, their ends are missing")
        self._note_all(sample.where, notes)

    def _note_all(self, where: str, notes: Sequence[str]) -> None:
        for note in notes:
            if note not in self._noted:
                self._say(f"note       {where}: {note}")
            self._noted[note] += 1
