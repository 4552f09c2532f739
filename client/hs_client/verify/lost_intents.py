"""Finds the rows of prompts files whose records lie in the dataset while the ledger has lost what was sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from hs_client.chat_options import ChatOptions, parse_arguments
from hs_client.errors import BadPrompts
from hs_client.generate.options import regenerated
from hs_client.input_files import DAMAGED, open_inputs
from hs_client.limits import Limits
from hs_client.lines import read_lines
from hs_client.loss_mask import clip
from hs_client.prepare import Prepared, prepare
from hs_client.row_error import RowError
from hs_client.rows import parse_row
from hs_client.tokenizing import ChatTokenizer, load_tokenizer
from hs_client.verify.mend import LostRecord
from hs_formats.dataset import DatasetInfo
from hs_formats.hashing import ids_xxh3
from hs_formats.ledger import Intent
from hs_formats.names import MAX_TOKENS

__all__ = ["find_intents"]


def find_intents(
    records: Collection[LostRecord], prompts: Sequence[Path], info: DatasetInfo, *, taken: Collection[str]
) -> list[Intent]:
    """Intents for those of `records` whose ids a row of `prompts` has; equal rows take equal records, in order.

    Rows are tokenised as the dataset was, by what its ``dataset.json`` says.

    Args:
        taken: sample ids that have a record already.

    Raises:
        BadPrompts: a file cannot be read.
        NoTokenizer: the dataset's tokenizer cannot be loaded, and rows need it.
    """
    free: dict[tuple[int, str], list[str]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.rid, reverse=True):
        free[record.n, record.ids_xxh3].append(record.rid)
    lengths = sorted({record.n for record in records})
    found: dict[str, Intent] = {}
    for sample in _rows(prompts, info) if records else ():
        if sample.sample_id in taken or sample.sample_id in found:
            continue
        for n in lengths:
            if n > sample.n:
                break
            ids = sample.ids[:n]
            rids = free.get((n, sample.ids_hash if n == sample.n else ids_xxh3(ids.tolist())))
            if rids:
                found[sample.sample_id] = _intent(sample, rids.pop(), n)
                break
    return list(found.values())


def _intent(sample: Prepared, rid: str, n: int) -> Intent:
    return Intent(
        sample_id=sample.sample_id,
        rid=rid,
        n=n,
        ids_xxh3=ids_xxh3(sample.ids[:n].tolist()),
        mask=clip(sample.spans, n),
        row=sample.where,
        content=sample.content,
        cut_from=sample.n if n < sample.n else 0,
    )


def _rows(prompts: Sequence[Path], info: DatasetInfo) -> Iterator[Prepared]:
    limits = Limits(context_tokens=MAX_TOKENS + 1)
    tokenizer: ChatTokenizer | None = None
    regenerate = regenerated(info.generation)
    for source in open_inputs(prompts):
        try:
            for line in read_lines(source):
                try:
                    row = parse_row(line.data or b"", regenerate)
                    if row.ask:
                        continue  # its answer is not in the file: the next run captures it again, from `responses`
                    if tokenizer is None and row.kind != "input_ids":
                        tokenizer = load_tokenizer(info.tokenizer, chat=_chat(info))
                    yield prepare(row, f"{source.name}:{line.number}", limits=limits, tokenizer=tokenizer)
                except RowError:
                    continue  # it was rejected when it was run, too
        except (OSError, *DAMAGED) as error:
            raise BadPrompts(path=source.name, reason=error) from None


def _chat(info: DatasetInfo) -> ChatOptions:
    arguments = parse_arguments(info.template_arguments)
    return ChatOptions(arguments=arguments, train_on="last" if info.train_on == "last" else "all")
