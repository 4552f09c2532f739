"""What a dataset holds: done samples from the ledgers, joined with their parts from the manifests. Reads no tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.ledger import Done, Intent, LedgerLine, read_ledger
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.mask import spans_to_mask
from hs_formats.names import Rid, rid_of_part, run_of_rid
from hs_formats.tiling import cover, record_complete

__all__ = ["BrokenSample", "DatasetIndex", "IndexedSample", "record_parts"]


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


@dataclass(frozen=True, slots=True)
class BrokenSample:
    """A sample that the ledger calls done, and why there is no record of it."""

    sample_id: str
    rid: str
    reason: str


def record_parts(n: int, lines: Iterable[ManifestLine]) -> tuple[ManifestLine, ...] | None:
    """The stored parts of a complete record of n tokens, ascending.

    None while it is incomplete, when a part is quarantined or of another n, when the lines disagree about the writers
    or about the rows that several ranks wrote, and when the copies that were kept do not tile it.
    """
    known = sorted(lines, key=lambda line: line.name)
    if not known or any(line.status == "quarantined" or line.name.n != n for line in known):
        return None
    first = known[0]
    if any((line.writers, line.expected_ranks) != (first.writers, first.expected_ranks) for line in known):
        return None
    names = [line.name for line in known]
    parts = [(name.rank, name.start, name.stop) for name in names]
    if not record_complete(n, parts, writers=first.writers, expected_ranks=first.expected_ranks):
        return None
    kept: dict[tuple[int, int], ManifestLine] = {}
    rows: dict[tuple[int, int], str] = {}
    for name, line in zip(names, known, strict=True):
        at = name.start, name.stop
        if rows.setdefault(at, line.rows_xxh3) != line.rows_xxh3:
            return None
        if line.status == "stored":
            kept.setdefault(at, line)  # of two stored copies the lower rank's
    return tuple(kept[at] for at in sorted(kept)) if cover(n, kept).exact else None


@dataclass(frozen=True, slots=True)
class DatasetIndex:
    """All done samples, in the order in which their runs started and of their rows.

    Attributes:
        samples: those whose parts make a record, by sample id.
        broken: the others, by sample id: one of them is no reason to refuse the rest.
        sample_ids: of both, in order.
    """

    samples: Mapping[str, IndexedSample]
    broken: Mapping[str, BrokenSample]
    sample_ids: tuple[str, ...]

    @classmethod
    def load(cls, paths: DatasetPaths) -> Self:
        """Read every ledger and manifest of the dataset.

        Raises:
            OSError: a file cannot be read.
        """
        # Ledgers first: whatever they call done has its manifest lines by then, also while a run goes on.
        ledgers = [read_ledger(path) for path in sorted(paths.ledger.glob("*.jsonl"))]
        return cls.build(ledgers, ManifestReader(paths.manifest).poll())

    @classmethod
    def build(cls, ledgers: Iterable[Sequence[LedgerLine]], manifest: Iterable[ManifestLine]) -> Self:
        """Join the lines of all ledgers, a sequence for each file, with those of the manifests, one for each part."""
        intents: dict[str, Intent] = {}
        winners: dict[str, str] = {}
        others: dict[str, list[str]] = {}
        for ledger in sorted(filter(None, ledgers), key=lambda lines: getattr(lines[0], "started_at", "")):
            for ledger_line in ledger:
                match ledger_line:
                    case Intent(rid=rid):
                        intents[rid] = ledger_line
                    case Done(sample_id=sample_id, rid=rid):
                        known = winners.setdefault(sample_id, rid)
                        if known != rid:
                            others.setdefault(sample_id, [known]).append(rid)
                    case _:
                        pass
        runs = {run: position for position, run in enumerate(dict.fromkeys(map(run_of_rid, intents)))}
        by_rid: dict[str, list[ManifestLine]] = defaultdict(list)
        for line in manifest:
            by_rid[rid_of_part(line.part)].append(line)
        # Of several done records the first whole one counts; where none is whole, the first.
        for sample_id, rids in others.items():
            rids.sort()
            whole = (rid for rid in rids if _whole(sample_id, rid, intents.get(rid), by_rid.get(rid, [])))
            winners[sample_id] = next(whole, rids[0])
        samples: dict[str, IndexedSample] = {}
        broken: dict[str, BrokenSample] = {}
        order = sorted(winners.items(), key=lambda item: (runs.get(run_of_rid(item[1]), -1), item[1]))
        for sample_id, rid in order:
            try:
                samples[sample_id] = _indexed(sample_id, rid, intents.get(rid), by_rid.get(rid, []))
            except FormatError as error:
                broken[sample_id] = BrokenSample(sample_id, rid, str(error))
        return cls(samples, broken, tuple(sample_id for sample_id, _ in order))


def _whole(sample_id: str, rid: str, intent: Intent | None, lines: list[ManifestLine]) -> bool:
    try:
        _indexed(sample_id, rid, intent, lines)
    except FormatError:
        return False
    return True


def _indexed(sample_id: str, rid: str, intent: Intent | None, lines: list[ManifestLine]) -> IndexedSample:
    if intent is None or intent.sample_id != sample_id:
        raise FormatError(f"sample {sample_id!r} is done by {rid}, which no ledger line announced for it")
    spans_to_mask(intent.mask, intent.n)
    parts = record_parts(intent.n, lines)
    if parts is None:
        raise FormatError(f"sample {sample_id!r} is done by {rid}, but its parts in the manifest do not tile it")
    return IndexedSample(sample_id, Rid.parse(rid), intent.n, intent.ids_xxh3, tuple(intent.mask), parts)
