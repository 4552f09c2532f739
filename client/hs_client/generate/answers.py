"""The answers of a dataset: those that earlier runs left, found by what was asked, and those of this run, written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hs_client.digests import DigestTable
from hs_formats.dataset import DatasetPaths
from hs_formats.jsonl import UNREADABLE, crc_fits
from hs_formats.regular import open_regular
from hs_formats.responses import Response, ResponseFacts, iter_facts

__all__ = ["Answers", "Generated", "answer_key", "answer_lines", "measure_answers"]

_LINE_BITS = 40


def answer_key(facts: ResponseFacts) -> bytes:
    """Sixteen bytes that stand for a question: who asks, what, with which settings, of which model."""
    asked = [facts.sample_id, facts.variant, facts.turn, facts.prompt_xxh3, facts.settings, facts.config_hash]
    return hashlib.blake2b(msgspec.json.encode(asked), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Generated:
    """How many answers there are, their tokens, and how many of them were cut."""

    answers: int = 0
    tokens: int = 0
    cut: int = 0


def measure_answers(paths: DatasetPaths, settings: str = "") -> Generated:
    """What the dataset's runs have generated, with these settings (a hash) or any.

    Raises:
        OSError: a file cannot be read.
    """
    answers = tokens = cut = 0
    for path in sorted(paths.responses.glob("*.jsonl")):
        for _, facts in iter_facts(path):
            if settings in ("", facts.settings):
                answers += 1
                tokens += facts.tokens
                cut += facts.finish_reason == "length"
    return Generated(answers, tokens, cut)


def answer_lines(paths: DatasetPaths) -> Iterator[str]:
    """What was generated for a dataset, for people: a line, or none where nothing was.

    Raises:
        OSError: a file cannot be read.
    """
    found = measure_answers(paths)
    if found.answers:
        cut = f", {found.cut:,} of them cut at a limit" if found.cut else ""
        mean = found.tokens / found.answers
        yield f"answers    {found.answers:,} generated{cut}, {found.tokens:,} tokens, {mean:,.0f} each"


class Answers:
    """What was generated for a dataset so far. Blocking; for one thread at a time.

    In memory is a digest and a place for each; the tokens stay on disk until they are asked for. `bad` counts lines
    that turned out to be damaged when they were asked for.
    """

    def __init__(self, paths: DatasetPaths) -> None:
        self._folder = paths.responses
        self._files: list[Path] = []
        self._places = DigestTable()
        self._decoder = msgspec.json.Decoder(Response)
        self.bad = 0

    def __len__(self) -> int:
        return len(self._places)

    def read(self) -> None:
        """Learn what all runs have left; of equal questions the last answer counts.

        Raises:
            OSError: a file cannot be read.
        """
        for path in sorted(self._folder.glob("*.jsonl")):
            number = len(self._files)
            self._files.append(path)
            for at, facts in iter_facts(path):
                self._places[answer_key(facts)] = number << _LINE_BITS | at

    def find(self, question: ResponseFacts) -> Response | None:
        """The answer to `question`, whose `asked` and `finish_reason` do not matter; None where there is none."""
        place = self._places.get(answer_key(question))
        if place is None:
            return None
        try:
            with open_regular(self._files[place >> _LINE_BITS]) as file:
                file.seek(place & ((1 << _LINE_BITS) - 1))
                line = file.readline()
            if crc_fits(line) is False:
                raise ValueError("damaged")
            return self._decoder.decode(line)
        except (OSError, ValueError, *UNREADABLE):
            self.bad += 1
            return None
