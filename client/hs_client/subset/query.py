"""Which samples of a dataset are meant. Pure logic but for the reading of an ids file."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from hs_formats.errors import UsageError
from hs_formats.index import IndexedSample
from hs_formats.ledger import Done, Intent
from hs_formats.mask import supervised

__all__ = ["FIELDS", "Candidate", "Query", "parse_fraction", "parse_where", "read_ids"]

FIELDS = ("sample_id", "rid", "run", "row", "content", "finish_reason", "adopted")
"""What ``--where`` may ask for: of the ledger's lines about a sample."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole sample with what the ledger says of it."""

    sample: IndexedSample
    intent: Intent
    done: Done
    verified: bool

    def field(self, name: str) -> str:
        """One of FIELDS as text."""
        if name == "sample_id":
            return self.sample.sample_id
        if name == "rid":
            return str(self.sample.rid)
        if name == "run":
            return self.sample.rid.run
        if name == "adopted":
            return str(self.done.adopted).lower()
        return str(getattr(self.done if name == "finish_reason" else self.intent, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """All conditions must hold; `invert` takes the samples for which they do not.

    Attributes:
        ids: sample ids, None for any.
        tokens: smallest and largest number of tokens.
        trained: the same of tokens that are trained on.
        where: field and pattern (``*``, ``?``, ``[...]``) that it must match.
        fraction: [low, high) of the samples by a hash of their token ids: the same samples whatever else the dataset
            holds, and equal prompts together.
        verified: only what `hs-client verify` found right.
    """

    ids: Collection[str] | None = None
    tokens: tuple[int, float] = (0, float("inf"))
    trained: tuple[int, float] = (0, float("inf"))
    where: Sequence[tuple[str, str]] = ()
    fraction: tuple[float, float] = (0.0, 1.0)
    verified: bool = False
    invert: bool = False

    def takes(self, candidate: Candidate) -> bool:
        """Whether the sample is meant."""
        sample = candidate.sample
        holds = (
            (self.ids is None or sample.sample_id in self.ids)
            and self.tokens[0] <= sample.n <= self.tokens[1]
            and self.trained[0] <= supervised(sample.mask_spans) <= self.trained[1]
            and all(fnmatch.fnmatchcase(candidate.field(name), pattern) for name, pattern in self.where)
            and self.fraction[0] <= int(sample.ids_xxh3[:16], 16) / 2**64 < self.fraction[1]
            and (candidate.verified or not self.verified)
        )
        return holds != self.invert


def parse_where(text: str) -> tuple[str, str]:
    """``FIELD=PATTERN``.

    Raises:
        UsageError: it is not that.
    """
    name, equals, pattern = text.partition("=")
    if not equals or name not in FIELDS:
        raise UsageError(f"--where {text}: give FIELD=PATTERN, with one of {', '.join(FIELDS)}")
    return name, pattern


def parse_fraction(text: str) -> tuple[float, float]:
    """``LOW:HIGH`` with 0 <= LOW < HIGH <= 1; the last part of a division, HIGH = 1, is closed.

    Raises:
        UsageError: it is not that.
    """
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low = high = -1.0
    if not 0 <= low < high <= 1:
        raise UsageError(f"--fraction {text}: give LOW:HIGH from 0 to 1, such as 0:0.95")
    return low, high if high < 1 else 2.0


def read_ids(path: Path) -> frozenset[str]:
    """Sample ids, one a line, as text or as ``id`` of a JSON object: a prompts file will do.

    Raises:
        UsageError: the file cannot be read, or a line is neither.
    """
    found: set[str] = set()
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                text = line.strip()
                if text.startswith("{"):
                    row = json.loads(text)
                    if "id" not in row:
                        raise UsageError(f"--ids {path}:{number}: the row has no id")
                    found.add(str(row["id"]))
                elif text:
                    found.add(text)
    except OSError as error:
        raise UsageError(f"--ids {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--ids {path}: {error}") from None
    return frozenset(found)
