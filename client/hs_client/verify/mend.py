"""What the books of a dataset should say, given what is really there. Pure logic: nothing is read or written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hs_formats.errors import FormatError
from hs_formats.index import record_parts
from hs_formats.ledger import Done, Failed, Intent, LedgerLine
from hs_formats.manifest import ManifestLine
from hs_formats.mask import spans_to_mask
from hs_formats.names import run_of_rid

__all__ = ["FileFacts", "LostRecord", "MendedLedgers", "mend_ledgers", "mend_manifests", "trusted_intents"]

_NOT_WHOLE = "its record is not whole, or what was sent for it is not known any more"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """What a file that something was found about really is: its line, or why it must go."""

    line: ManifestLine | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LostRecord:
    """A whole record that no intent fits."""

    rid: str
    n: int
    ids_xxh3: str


def mend_manifests(
    manifests: Sequence[Sequence[ManifestLine]], facts: Mapping[str, FileFacts], missing: Collection[str]
) -> tuple[list[list[ManifestLine]], list[ManifestLine]]:
    """The lines that each manifest should hold, and new ones for files that none mentions.

    Args:
        manifests: the readable lines of each file, in the order in which they count.
        facts: of looked-at files by path; all others are as their lines say.
        missing: paths of files that done samples need and that are gone.
    """
    told: set[str] = set()
    used: set[str] = set()
    kept: list[list[ManifestLine]] = []
    for lines in manifests:
        mine: list[ManifestLine] = []
        for line in lines:
            if line.part in told:
                continue
            fact = facts.get(line.path) if line.status == "stored" else None
            if fact is not None:
                if fact.line is None or fact.line.part != line.part:
                    continue  # the file is bad, or another part: then it gets a line of its own below
                used.add(line.path)
                told.add(line.part)
                mine.append(_with(fact.line, {"flags": line.flags, "stored_at": line.stored_at}))
            elif line.path not in missing:
                told.add(line.part)
                mine.append(line)
        kept.append(mine)
    new: dict[str, ManifestLine] = {}
    for path, fact in facts.items():
        if fact.line is not None and path not in used and fact.line.part not in told:
            new.setdefault(fact.line.part, fact.line)
    return kept, list(new.values())


def _with(line: ManifestLine, changes: Mapping[str, object]) -> ManifestLine:
    fields = {name: getattr(line, name) for name in line.__struct_fields__}
    return ManifestLine(**{**fields, **changes})


@dataclass(slots=True)
class MendedLedgers:
    """The lines that each ledger should hold.

    Attributes:
        ledgers: by run.
        found: samples that are done from now on.
        lost: samples that were done and are no more, with the reason.
    """

    ledgers: dict[str, list[LedgerLine]]
    found: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)


def mend_ledgers(
    ledgers: Mapping[str, Sequence[LedgerLine]],
    manifest: Sequence[ManifestLine],
    record_ids: Mapping[str, str],
    *,
    bad: Mapping[str, str],
    rebuilt: Sequence[Intent] = (),
) -> MendedLedgers:
    """Every sample with a whole and good record is done, and no other.

    Args:
        ledgers: readable lines by run.
        manifest: mended lines.
        record_ids: hash of the ids in each whole record, by rid.
        bad: why the record of a rid must not be used.
        rebuilt: intents for records that had lost theirs; they count before all others of their rid.
    """
    parts: dict[str, list[ManifestLine]] = defaultdict(list)
    for stored in manifest:
        parts[str(stored.name.rid)].append(stored)
    intents = trusted_intents(ledgers, rebuilt)
    whole = {
        rid
        for rid, intent in intents.items()
        if rid not in bad and record_ids.get(rid) == intent.ids_xxh3 and record_parts(intent.n, parts.get(rid, []))
    }
    mended = MendedLedgers({run: [] for run in ledgers})
    done: set[str] = set()
    failed: set[str] = set()
    claimed: dict[str, str] = {}
    told: set[str] = set()
    for run, lines in ledgers.items():
        for line in lines:
            kept = _mended(line, intents, whole, bad)
            if kept is not None and not (isinstance(kept, Intent) and kept.rid in told):
                mended.ledgers[run].append(kept)
            if isinstance(kept, Intent):
                told.add(kept.rid)
            if isinstance(kept, Done):
                done.add(kept.sample_id)
            elif isinstance(kept, Failed):
                failed.add(kept.rid)
            if isinstance(line, Done) and kept is not line:
                claimed.setdefault(line.sample_id, bad.get(line.rid, _NOT_WHOLE))
    for intent in rebuilt:
        mended.ledgers.setdefault(run_of_rid(intent.rid), []).append(intent)
    for rid in sorted(whole - failed):
        intent = intents[rid]
        if intent.sample_id not in done:
            done.add(intent.sample_id)
            mended.found.append(intent.sample_id)
            again = Done(sample_id=intent.sample_id, rid=rid, adopted=True, content=intent.content)
            mended.ledgers.setdefault(run_of_rid(rid), []).append(again)
    mended.lost = {sample_id: why for sample_id, why in claimed.items() if sample_id not in done}
    mended.found = [sample_id for sample_id in mended.found if sample_id not in claimed]
    return mended


def trusted_intents(ledgers: Mapping[str, Sequence[LedgerLine]], rebuilt: Sequence[Intent] = ()) -> dict[str, Intent]:
    """Intents by rid: of their own run, with a mask that fits, and of the sample that a `done` line gives the rid."""
    samples: dict[str, set[str]] = defaultdict(set)
    for lines in ledgers.values():
        for line in lines:
            if isinstance(line, Done):
                samples[line.rid].add(line.sample_id)
    intents = {intent.rid: intent for intent in rebuilt}
    for run, lines in ledgers.items():
        for line in lines:
            if not isinstance(line, Intent) or run_of_rid(line.rid) != run or not _mask_fits(line):
                continue
            if line.sample_id in samples.get(line.rid, {line.sample_id}):
                intents.setdefault(line.rid, line)
    return intents


def _mended(
    line: LedgerLine, intents: Mapping[str, Intent], whole: Collection[str], bad: Mapping[str, str]
) -> LedgerLine | None:
    """What becomes of one line; None where it goes."""
    if isinstance(line, Intent):
        return line if intents.get(line.rid) == line else None
    if not isinstance(line, Done):
        return line
    intent = intents.get(line.rid)
    if intent is None or intent.sample_id != line.sample_id:
        return None
    if line.rid in whole:
        return line
    return Failed(sample_id=line.sample_id, rid=line.rid, kind="damaged", reason=bad.get(line.rid, _NOT_WHOLE))


def _mask_fits(intent: Intent) -> bool:
    try:
        spans_to_mask(intent.mask, intent.n)
    except FormatError:
        return False
    return True
