"""From a row to what is sent and kept: token ids, loss mask, hash. Runs in a thread, ahead of the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hs_client.plan import Fate, Judged, Plan
from hs_client.rows import Row, RowError
from hs_client.tokenizing import ChatTokenizer
from hs_formats.hashing import ids_xxh3
from hs_formats.mask import mask_to_spans

__all__ = ["Limits", "Prepared", "Source", "prepare"]

_BATCH_ROWS = 32
_BATCH_TOKENS = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model takes: tokens of context, and the size of its vocabulary (0 where nobody knows it)."""

    context_tokens: int
    vocab_size: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sample ready to be sent. `ids` is int32 [n], `spans` are the [start, stop) of tokens to train on; `content` is
    the row's."""

    sample_id: str
    where: str
    ids: npt.NDArray[np.int32]
    spans: list[tuple[int, int]]
    ids_hash: str
    content: str = ""

    @property
    def n(self) -> int:
        """Number of tokens."""
        return len(self.ids)


def prepare(row: Row, where: str, *, limits: Limits, tokenizer: ChatTokenizer | None) -> Prepared:
    """Tokenise and check one row.

    Raises:
        RowError: it does not fit the model.
    """
    start = 0
    if row.kind == "input_ids":
        ids = list(row.ids)
    elif tokenizer is None:
        raise RowError("no tokenizer is loaded", row.sample_id)
    elif row.kind == "text":
        ids = tokenizer.text_ids(row.text)
    else:
        ids, start = tokenizer.chat_ids(row.messages, row.template)
    n = len(ids)
    if not n:
        raise RowError("the tokenizer makes no token of it", row.sample_id)
    if n + 1 > limits.context_tokens:
        raise RowError(
            f"too long: {n} tokens, and the server's context of {limits.context_tokens} needs one to spare",
            row.sample_id,
            context_tokens=limits.context_tokens,
        )
    if limits.vocab_size and max(ids) >= limits.vocab_size:
        raise RowError(f"token id {max(ids)} is outside the vocabulary of {limits.vocab_size}", row.sample_id)
    spans = [(start, n)] if row.mask is None else mask_to_spans(row.mask)
    if start >= n:
        raise RowError("the last turn has no token: nothing to train on", row.sample_id)
    array = np.asarray(ids, dtype=np.int32)
    return Prepared(row.sample_id, where, array, spans, ids_xxh3(ids), row.content)


class Source:
    """Second pass over the plan: batches of prepared samples and of rejected rows. For one thread at a time.

    Args:
        plan: from the first pass.
        limits: of the model.
        load: gives the tokenizer; called once, when the first row needs it.
        limit: stop after this many samples.
    """

    def __init__(
        self, plan: Plan, *, limits: Limits, load: Callable[[], ChatTokenizer], limit: int | None = None
    ) -> None:
        self._rows: Iterator[Judged] = plan.judge_all()
        self._limits = limits
        self._load = load
        self._tokenizer: ChatTokenizer | None = None
        self._left = limit

    def load_tokenizer(self) -> None:
        """Load the tokenizer now, so that its failure comes before the first request.

        Raises:
            HsError: it cannot be loaded.
        """
        if self._tokenizer is None:
            self._tokenizer = self._load()

    def next_batch(self) -> tuple[list[Prepared], list[Judged]] | None:
        """The next samples to send and rows to reject; None at the end.

        Raises:
            HsError: the tokenizer cannot be loaded or a file cannot be read.
        """
        samples: list[Prepared] = []
        rejected: list[Judged] = []
        tokens = 0
        while len(samples) + len(rejected) < _BATCH_ROWS and tokens < _BATCH_TOKENS and self._left != 0:
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
                sample = prepare(judged.row, judged.where, limits=self._limits, tokenizer=self._tokenizer)
            except RowError as error:
                rejected.append(judged.refused(error))
                continue
            samples.append(sample)
            tokens += sample.n
            if self._left is not None:
                self._left -= 1
        return (samples, rejected) if samples or rejected else None
