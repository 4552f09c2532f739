"""What a dataset holds: done samples from the ledgers, joined with their parts from the manifests. No tensor is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.ledger import Done, Intent, LedgerLine, read_ledger
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.mask import spans_to_mask
from hs_formats.names import Rid
from hs_formats.tiling import record_complete

__all__ = ["DatasetIndex", "IndexedSample", "record_parts"]


@dataclass(frozen=True, slots=True)
class IndexedSample:
    """A done sample and the stored parts that tile it."""

    sample_id: str
    rid: Rid
    n: int
    ids_xxh3: str
    mask_spans: tuple[tuple[int, int], ...]
    parts: tuple[ManifestLine, ...]

    def mask(self) -> bytearray:
        """Loss mask, one byte a token."""
        return spans_to_mask(self.mask_spans, self.n)


def record_parts(n: int, lines: Iterable[ManifestLine]) -> tuple[ManifestLine, ...] | None:
    """The stored parts of a complete record of n tokens, ascending; None while it is incomplete or a part is quarantined."""
    known = list(lines)
    if not known or any(line.status == "quarantined" or line.name.n != n for line in known):
        return None
    parts = [(line.name.rank, line.name.start, line.name.stop) for line in known]
    first = known[0]
    if not record_complete(n, parts, writers=first.writers, expected_ranks=first.expected_ranks):
        return None
    stored = sorted((line for line in known if line.status == "stored"), key=lambda line: line.name.start)
    return tuple(stored)


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """All done samples by sample id, in the order of run start and row."""

    samples: Mapping[str, IndexedSample]

    @classmethod
    def load(cls, paths: DatasetPaths) -> Self:
        """Read every ledger and manifest of the dataset.

        Raises:
            FormatError: a done sample has no intent line or its parts do not make a record.
            OSError: a file cannot be read.
        """
        manifest = ManifestReader(paths.manifest)
        by_rid: dict[str, list[ManifestLine]] = defaultdict(list)
        for line in manifest.poll():
            by_rid[str(line.name.rid)].append(line)
        intents: dict[str, Intent] = {}
        winners: dict[str, str] = {}
        for ledger_line in _all_lines(paths):
            match ledger_line:
                case Intent(rid=rid):
                    intents[rid] = ledger_line
                case Done(sample_id=sample_id, rid=rid):
                    winners[sample_id] = min(rid, winners.get(sample_id, rid))
                case _:
                    pass
        samples: dict[str, IndexedSample] = {}
        for sample_id, rid in winners.items():
            intent = intents.get(rid)
            if intent is None:
                raise FormatError(f"sample {sample_id!r} is done by {rid}, which no ledger line announced")
            parts = record_parts(intent.n, by_rid.get(rid, []))
            if parts is None:
                raise FormatError(
                    f"sample {sample_id!r} is done by {rid}, but its parts in the manifest do not tile it"
                )
            samples[sample_id] = IndexedSample(
                sample_id, Rid.parse(rid), intent.n, intent.ids_xxh3, tuple(intent.mask), parts
            )
        return cls(samples)


def _all_lines(paths: DatasetPaths) -> Iterable[LedgerLine]:
    ledgers = [lines for path in sorted(paths.ledger.glob("*.jsonl")) if (lines := read_ledger(path))]
    ledgers.sort(key=lambda lines: getattr(lines[0], "started_at", ""))
    for lines in ledgers:
        yield from lines
