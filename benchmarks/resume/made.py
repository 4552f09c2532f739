"""What the case resumes: a prompts file, a tokenizer for it, and the ledger of a run that got most of it done."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hs_formats.hashing import row_content
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Intent, LedgerLine, RunStarted
from hs_formats.names import Rid

__all__ = ["rows", "save_tokenizer", "write_ledger", "write_prompts"]

_WORDS = 4000
_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_LEDGER_BATCH = 2000
RUN = "0badcafe"


def rows(count: int, *, kind: str, tokens: int) -> Iterator[dict[str, Any]]:
    """`count` different rows of about `tokens` tokens: ``chat`` with two turns, or ``ids``."""
    draw = random.Random(7)
    words = [f"w{at}" for at in range(_WORDS)]
    for at in range(count):
        if kind == "ids":
            yield {"id": f"row-{at}", "input_ids": [draw.randrange(3, _WORDS) for _ in range(tokens)]}
            continue
        text = draw.choices(words, k=tokens)
        half = tokens // 3
        asked, said = " ".join(text[:half]), " ".join(text[half:])
        yield {
            "id": f"row-{at}",
            "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": said}],
        }


def write_prompts(path: Path, count: int, *, kind: str, tokens: int) -> None:
    """The prompts file."""
    with path.open("w", encoding="utf-8", buffering=1 << 20) as file:
        for row in rows(count, kind=kind, tokens=tokens):
            file.write(json.dumps(row) + "\n")


def write_ledger(path: Path, prompts: Path, done: int, *, tokens: int) -> None:
    """The ledger of a run that has done the first `done` rows of `prompts`."""
    log = AppendLog(path)
    started = RunStarted(run=RUN, started_at="2026-01-01T00:00:00.000+00:00", inputs=[], servers=[], version="0")
    batch: list[LedgerLine] = [started]
    with prompts.open("rb") as file:
        for at, line in zip(range(done), file, strict=False):
            row = json.loads(line)
            rid, content = str(Rid(RUN, at, 0)), row_content(row)
            mask = [(tokens // 3, tokens)]
            batch.append(
                Intent(
                    sample_id=row["id"],
                    rid=rid,
                    n=tokens,
                    ids_xxh3="ab" * 16,
                    mask=mask,
                    row=f"{prompts}:{at + 1}",
                    content=content,
                )
            )
            batch.append(
                Done(
                    sample_id=row["id"],
                    rid=rid,
                    finish_reason="length",
                    prompt_tokens=tokens,
                    cached_tokens=0,
                    content=content,
                )
            )
            if len(batch) >= _LEDGER_BATCH:
                log.append(batch)
                batch = []
    log.append(batch)
    log.close()


def save_tokenizer(folder: Path) -> None:
    """A small tokenizer of words, with a chat template."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<|end|>", "<|user|>", "<|assistant|>"]
    vocabulary = {word: at for at, word in enumerate([*special, *(f"w{at}" for at in range(_WORDS))])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=special[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(special)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=special[0], eos_token=special[1])
    wrapped.chat_template = _TEMPLATE
    wrapped.save_pretrained(str(folder))
