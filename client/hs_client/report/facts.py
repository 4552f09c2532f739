"""What the books of a dataset say about it and its runs. Reads ledgers, manifests and timelines, no payload."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from hs_client.report.scales import show_time
from hs_client.tally import Reason, reason_kind
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError, PreflightError
from hs_formats.index import DatasetIndex
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, Rejected, RunStarted, read_ledger
from hs_formats.location import Location
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.names import run_of_rid
from hs_formats.timeline import TimelinePoint, read_timeline
from hs_formats.verified import VerifiedSet

__all__ = ["DatasetFacts", "RunFacts", "StorageFacts", "gather", "losses", "run_facts", "storage_facts"]

_ENDINGS = {
    0: "all done",
    1: "finished, some rows failed or were rejected",
    4: "server lost",
    5: "storage stood still",
    130: "interrupted",
}


@dataclass(frozen=True, slots=True)
class RunFacts:
    """One run.

    Attributes:
        started: its first line; None where that was lost.
        counts: of its ledger's lines by kind: ``sent``, ``done``, ``adopted`` (of the done ones), ``failed``
            (attempts), ``rejected``.
        timeline: its lines, none for runs that kept none.
        stored: of its samples when each was stored, in seconds since the epoch, and its tokens.
    """

    run: str
    started: RunStarted | None
    counts: Counter[str]
    timeline: Sequence[TimelinePoint]
    stored: Sequence[tuple[float, int]]

    @property
    def started_at(self) -> str:
        """UTC; empty where it is not known."""
        return self.started.started_at if self.started else ""

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if not self.timeline:
            return "not known: it kept no timeline"
        last = self.timeline[-1]
        if last.exit_code < 0:
            return f"no end is noted: it is going on, or was killed (last heard of {show_time(last.at)})"
        words = _ENDINGS.get(last.exit_code, f"exit code {last.exit_code}")
        return f"{words}: {last.error}" if last.error else words


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """What the manifests say: parts by codec, by what was noticed of them, and when the first and last were stored."""

    codecs: Counter[str]
    flags: Counter[str]
    movers: Sequence[str]
    first_at: str
    last_at: str
    damaged_lines: int


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """All of it. `lost`: samples that are not there, by reason. `attempts`: failed ones, by reason, repeated or not."""

    root: Location
    info: DatasetInfo
    index: DatasetIndex
    verified: VerifiedSet
    runs: Sequence[RunFacts]
    storage: StorageFacts
    lost: Sequence[Reason]
    attempts: Sequence[Reason]


def gather(paths: DatasetPaths, info: DatasetInfo) -> DatasetFacts:
    """Read the books.

    Raises:
        PreflightError: one of them cannot be read.
    """
    try:
        # In this order a dataset may grow meanwhile.
        ledgers = {path.stem: read_ledger(path) for path in sorted(paths.ledger.glob("*.jsonl"))}
        manifests = ManifestReader(paths.manifest)
        lines = manifests.poll()
        timelines = {run: read_timeline(paths.timeline_file(run)) for run in ledgers}
        verified = VerifiedSet.read(paths)
    except (FormatError, OSError) as error:
        raise PreflightError(f"{paths.shown}: {error}") from None
    index = DatasetIndex.build(ledgers.values(), lines)
    stored = _stored_times(index)
    runs = [run_facts(run, ledger, timelines[run], stored[run]) for run, ledger in ledgers.items()]
    lost, attempts = losses(ledgers.values(), lines)
    movers = sorted(path.stem for path in paths.manifest.glob("*.jsonl"))
    return DatasetFacts(
        root=paths.location,
        info=info,
        index=index,
        verified=verified,
        runs=sorted(runs, key=lambda run: (run.started_at, run.run)),
        storage=storage_facts(lines, movers, damaged_lines=manifests.bad),
        lost=lost,
        attempts=attempts,
    )


def _stored_times(index: DatasetIndex) -> dict[str, list[tuple[float, int]]]:
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for sample in index.samples.values():
        at = max(line.stored_at for line in sample.parts)
        try:
            found[sample.rid.run].append((datetime.fromisoformat(at).timestamp(), sample.n))
        except ValueError:
            continue  # manifests that were rebuilt have no times
    return found


def run_facts(
    run: str, ledger: Iterable[LedgerLine], timeline: Sequence[TimelinePoint], stored: Sequence[tuple[float, int]]
) -> RunFacts:
    """Of one run, by the lines of its ledger."""
    counts: Counter[str] = Counter()
    started: RunStarted | None = None
    for line in ledger:
        match line:
            case RunStarted():
                started = started or line
            case Intent():
                counts["sent"] += 1
            case Done():
                counts["done"] += 1
                counts["adopted"] += line.adopted
            case Failed():
                counts["failed"] += 1
            case Rejected():
                counts["rejected"] += 1
    return RunFacts(run, started, counts, timeline, stored)


def storage_facts(lines: Iterable[ManifestLine], movers: Sequence[str], *, damaged_lines: int) -> StorageFacts:
    """Of all parts."""
    codecs: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    first, last = "", ""
    for line in lines:
        codecs[line.codec if line.status == "stored" else line.status] += 1
        flags.update(line.flags)
        if line.stored_at:
            first = min(first or line.stored_at, line.stored_at)
            last = max(last, line.stored_at)
    return StorageFacts(codecs, flags, movers, first, last, damaged_lines)


@dataclass(slots=True)
class _Reasons:
    found: dict[tuple[str, str], Reason] = field(default_factory=dict)

    def add(self, fate: str, kind: str, where: str, reason: str) -> None:
        known = self.found.get((fate, kind))
        if known is None:
            self.found[fate, kind] = Reason(fate, kind, 1, where, reason)
        else:
            known.count += 1

    def by_count(self) -> list[Reason]:
        return sorted(self.found.values(), key=lambda each: (-each.count, each.fate, each.kind))


def losses(
    ledgers: Iterable[Sequence[LedgerLine]], manifest: Iterable[ManifestLine]
) -> tuple[list[Reason], list[Reason]]:
    """Rows that are no samples, by why the last run that looked at them said so; and what went wrong with attempts.

    Rows that were sent and have neither been done, failed nor rejected count as *open*. Parts that the mover has put
    into quarantine are among what went wrong.
    """
    done: set[str] = set()
    rows: dict[str, str] = {}
    last: dict[str, tuple[str, str, str, str]] = {}
    attempts = _Reasons()
    for ledger in sorted(filter(None, ledgers), key=lambda lines: getattr(lines[0], "started_at", "")):
        for line in ledger:
            match line:
                case Done():
                    done.add(line.sample_id)
                case Intent():
                    rows[line.sample_id] = line.row
                    where = line.row or line.sample_id
                    reason = f"its outcome was not noted by run {run_of_rid(line.rid)}"
                    last[line.sample_id] = ("open", "sent and not settled", where, reason)
                case Failed():
                    where = rows.get(line.sample_id) or line.sample_id
                    attempts.add("failed", line.kind, where, line.reason)
                    last[line.sample_id] = ("failed", line.kind, where, line.reason)
                case Rejected():
                    key = line.sample_id or line.row
                    last[key] = ("rejected", reason_kind(line.reason), line.row, line.reason)
                case RunStarted():
                    pass
    for part in manifest:
        if part.status == "quarantined":
            attempts.add("quarantined", reason_kind(part.reason), part.part, part.reason)
    lost = _Reasons()
    for key, fate in last.items():
        if key not in done:
            lost.add(*fate)
    return lost.by_count(), attempts.by_count()
