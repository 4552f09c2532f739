"""What a dataset holds: done samples from the ledgers, joined with their parts from the manifests. Reads no tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.ledger import Done, Intent, LedgerLine, iter_ledger
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
    known = sorted(((line.name, line) for line in lines), key=lambda item: item[0])
    if not known or any(line.status == "quarantined" or name.n != n for name, line in known):
        return None
    first = known[0][1]
    if any((line.writers, line.expected_ranks) != (first.writers, first.expected_ranks) for _, line in known):
        return None
    parts = [(name.rank, name.start, name.stop) for name, _ in known]
    if not record_complete(n, parts, writers=first.writers, expected_ranks=first.expected_ranks):
        return None
    kept: dict[tuple[int, int], ManifestLine] = {}
    rows: dict[tuple[int, int], str] = {}
    for name, line in known:
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
        started = sorted((_started_at(path), path) for path in paths.ledger.glob("*.jsonl"))
        said = _Said()
        for _, path in started:
            said.add(iter_ledger(path))  # line by line: what is dropped at once needs no room
        return cls._join(said, ManifestReader(paths.manifest).poll())

    @classmethod
    def build(cls, ledgers: Iterable[Sequence[LedgerLine]], manifest: Iterable[ManifestLine]) -> Self:
        """Join the lines of all ledgers, a sequence for each file, with those of the manifests, one for each part."""
        said = _Said()
        for ledger in sorted(filter(None, ledgers), key=lambda lines: getattr(lines[0], "started_at", "")):
            said.add(ledger)
        return cls._join(said, manifest)

    @classmethod
    def _join(cls, said: _Said, manifest: Iterable[ManifestLine]) -> Self:
        intents, winners, others = said.intents, said.winners, said.others
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
                # Its own, and nobody else can use them: a million samples are a matter of gigabytes.
                del intents[rid], by_rid[rid]
            except FormatError as error:
                broken[sample_id] = BrokenSample(sample_id, rid, str(error))
        return cls(samples, broken, tuple(sample_id for sample_id, _ in order))


@dataclass(slots=True)
class _Said:
    """What the ledgers say, in the order in which their runs started: intents by rid, the request that was first called
    done for each sample, and where there are several all of them."""

    intents: dict[str, Intent] = field(default_factory=dict)
    winners: dict[str, str] = field(default_factory=dict)
    others: dict[str, list[str]] = field(default_factory=dict)

    def add(self, ledger: Iterable[LedgerLine]) -> None:
        """The lines of the next ledger."""
        for line in ledger:
            match line:
                case Intent(rid=rid):
                    self.intents[rid] = line
                case Done(sample_id=sample_id, rid=rid):
                    intent = self.intents.get(rid)
                    if intent is not None and intent.sample_id == sample_id:
                        sample_id, rid = intent.sample_id, intent.rid  # of equal texts one is kept
                    known = self.winners.setdefault(sample_id, rid)
                    if known != rid:
                        self.others.setdefault(sample_id, [known]).append(rid)
                case _:
                    pass


def _started_at(path: Path) -> str:
    """When the run of a ledger started, "" where its first line does not say it."""
    return getattr(next(iter_ledger(path), None), "started_at", "")


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
