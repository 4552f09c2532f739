"""`hs-client verify --repair`: rebuilds manifests and ledgers from what is there.

What was found decides what is looked at again; all else stays as it is. Files that are no good go to ``quarantine``,
with the reason beside them. Every book that changes is first kept below ``repairs``, under the time of the repair.
Killed at any moment, a second repair goes on from there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from hs_client.claim import live_runs
from hs_client.verify.books import BookFile, Books
from hs_client.verify.findings import Finding
from hs_client.verify.mend import FileFacts, LostRecord, MendedLedgers, mend_ledgers, mend_manifests, trusted_intents
from hs_client.verify.part_file import read_part
from hs_client.verify.run import Verification
from hs_formats.control import ControlFolder, now_s
from hs_formats.dataset import DatasetPaths
from hs_formats.durable import fsync_folder, make_folders, write_durable
from hs_formats.errors import FormatError, PreflightError
from hs_formats.hashing import xxh3_hex
from hs_formats.index import record_parts
from hs_formats.jsonl import encode_line
from hs_formats.ledger import Intent, LedgerLine, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import run_of_rid

__all__ = ["REPAIR_MANIFEST", "Repair", "repair"]

REPAIR_MANIFEST = "repair"
"""Stem of the manifest that takes the lines of files which no other has."""

_ABOUT_FILES = {
    *("damaged file", "unlike its manifest line", "unlike dataset.json", "no manifest line", "foreign file"),
    *("wrong manifest line", "contradicting lines", "damaged line", "missing file"),
}
_ABOUT_VALUES = {
    *("not finite", "zeros", "constant", "equal slots", "repeated rows", "wrong token id"),
    "unlike the model",
}


@dataclass(slots=True)
class Repair:
    """What was done.

    Attributes:
        quarantined: moved files, with the reason.
        books: manifests and ledgers that were written anew, relative to the dataset.
        found: samples that are done from now on.
        lost: samples that are done no more, with the reason; the next run captures them again.
        kept_in: where the old books are.
    """

    quarantined: dict[str, str] = field(default_factory=dict)
    books: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0
    kept_in: str = ""

    @property
    def changed(self) -> bool:
        """Anything was done."""
        return bool(self.quarantined or self.books)

    def lines(self) -> list[str]:
        """For the user."""
        lines = [f"quarantine {path}: {reason}" for path, reason in self.quarantined.items()]
        if self.books:
            kept = f"; the old ones are in {self.kept_in}" if self.kept_in else ""
            lines.append(f"rewritten  {', '.join(self.books)}{kept}")
        lines += [f"found      sample {sample_id!r}" for sample_id in self.found]
        lines += [f"lost       sample {sample_id!r}: {reason}" for sample_id, reason in self.lost.items()]
        if self.lost:
            lines.append(f"           repeat `hs-client run` to capture these {len(self.lost)} again")
        if self.unnamed:
            lines.append(
                f"unclaimed  {self.unnamed} whole records of no known sample: --prompts FILE says whose they are"
            )
        return lines or ["repaired   nothing: the books agree with the data"]

    def report(self) -> dict[str, Any]:
        """For the JSON report."""
        return {
            "quarantined": self.quarantined,
            "books": self.books,
            "found": self.found,
            "lost": self.lost,
            "unclaimed_records": self.unnamed,
        }


def repair(done: Verification, *, scratch: Path, prompts: Sequence[Path]) -> Repair:
    """Rebuild the books of the dataset that `done` found wrong.

    Args:
        done: a verification that was just made.
        scratch: is asked whether a mover or a client is at work on the dataset.
        prompts: files whose rows may be those of records that have lost their intent.

    Raises:
        PreflightError: somebody is at work on the dataset.
        OSError: it cannot be written.
    """
    paths = done.books.paths
    _refuse_busy(paths, scratch)
    with _held(done.books):
        return _rebuild(done, prompts)


def _rebuild(done: Verification, prompts: Sequence[Path]) -> Repair:
    paths, books = done.books.paths, done.books
    result = Repair()
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    facts = _look_again(done)
    missing = {
        part.path
        for sample in books.index.samples.values()
        for part in sample.parts
        if not (paths.root / part.path).is_file()
    }
    kept, new = mend_manifests([book.lines for book in books.manifests], facts, missing)
    manifest = [*new, *(line for lines in kept for line in lines)]
    ledgers, bad = {book.path.stem: book.lines for book in books.ledgers}, _bad_records(done)
    record_ids = dict(_record_ids(paths, manifest))
    intents = trusted_intents(ledgers)
    lost = [
        LostRecord(rid, n, ids)
        for rid, (n, ids) in record_ids.items()
        if rid not in bad and (rid not in intents or intents[rid].ids_xxh3 != ids or intents[rid].n != n)
    ]
    hashes = {rid: ids for rid, (_, ids) in record_ids.items()}
    sound = mend_ledgers(ledgers, manifest, hashes, bad=bad)
    taken = {sample for sample in books.index.samples if sample not in sound.lost}
    rebuilt: list[Intent] = []
    if prompts:
        from hs_client.verify.lost_intents import find_intents  # rows need what the tokenizer needs

        rebuilt = find_intents(lost, prompts, done.info, taken=taken)
    mended = mend_ledgers(ledgers, manifest, hashes, bad=bad, rebuilt=rebuilt)
    result.found, result.lost, result.unnamed = mended.found, mended.lost, len(lost) - len(rebuilt)
    _quarantine(paths, facts, result, at)
    _write_manifests(done, kept, new, result, at)
    _write_ledgers(done, mended, prompts, result, at)
    return result


def _refuse_busy(paths: DatasetPaths, scratch: Path) -> None:
    control = ControlFolder(scratch)
    mover = control.read_mover()
    if mover is not None and mover.alive(now_s()) and Path(mover.dst).resolve() == paths.root.resolve().parent:
        raise PreflightError(f"a mover stores to {mover.dst}: stop it before the dataset is repaired")
    busy = live_runs(control) if control.clients.is_dir() else set()
    at_work = sorted(path.stem for path in paths.ledger.glob("*.jsonl") if path.stem in busy)
    if at_work:
        raise PreflightError(f"run {at_work[0]} is at work on {paths.root}: let it end before the dataset is repaired")


@contextlib.contextmanager
def _held(books: Books) -> Iterator[None]:
    """Nobody has a book open to write, on whatever scratch, and each is as it was when it was verified.

    Raises:
        PreflightError: somebody is at work, or has been since.
    """
    paths = books.paths
    read: list[BookFile[Any]] = [*books.ledgers, *books.manifests]
    sizes = {book.path: book.size_bytes for book in read}
    with contextlib.ExitStack() as stack:
        for path in sorted({*sizes, *paths.ledger.glob("*.jsonl"), *paths.manifest.glob("*.jsonl")}):
            if path not in sizes or not path.exists():
                raise PreflightError(f"{path} came or went while the dataset was verified: repeat the command")
            file = stack.enter_context(path.open("r+b"))  # an exclusive lock needs it on NFS
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PreflightError(
                    f"somebody writes to {path}: let the run end and stop the mover before the dataset is repaired"
                ) from None
            except OSError:
                pass  # a file system without locks
            if os.fstat(file.fileno()).st_size != sizes[path]:
                raise PreflightError(f"{path} changed while the dataset was verified: repeat the command")
        yield


def _look_again(done: Verification) -> dict[str, FileFacts]:
    """Files that a finding may be about, by path."""
    books = done.books
    if not any(finding.kind in _ABOUT_FILES for finding in done.findings):
        return {}
    named = {finding.where for finding in done.findings if finding.kind in _ABOUT_FILES}
    doubtful = {path for path in books.files if path in named}
    doubtful |= {file.path for file in books.unlisted()}
    doubtful |= {line.path for line in books.lines.values() if any(line.part in where for where in named)}
    facts: dict[str, FileFacts] = {}
    taken: set[str] = set()
    for path in sorted(doubtful & set(books.files)):
        file = books.files[path]
        if file.name is None or file.problem:
            if file.problem != "temporary":
                facts[path] = FileFacts(None, file.problem)
            continue
        try:
            part = read_part(books.paths, path, file.name)
            part.check_crc()
            misfits = part.misfits(done.info)
        except FormatError as error:
            facts[path] = FileFacts(None, str(error).replace(f"{books.paths.root}/", ""))
            continue
        line = books.lines.get(str(file.name))
        if misfits:
            facts[path] = FileFacts(None, "; ".join(misfits))
        elif line is not None and line.path == path and line.xxh3 != part.xxh3 and line.rows_xxh3 != part.rows_xxh3:
            facts[path] = FileFacts(None, "it is whole, but not the file that the manifest describes")
        elif str(file.name) in taken:
            facts[path] = FileFacts(None, "a second copy of its part")
        else:
            taken.add(str(file.name))
            facts[path] = FileFacts(part.line(flags=["repaired"]))
    return facts


def _bad_records(done: Verification) -> dict[str, str]:
    """Records whose values are wrong, with the first reason, by rid."""
    bad: dict[str, str] = {}
    samples = done.books.index.samples
    for finding in done.findings:
        if finding.severity == "error" and finding.kind in _ABOUT_VALUES and finding.sample_id in samples:
            bad.setdefault(str(samples[finding.sample_id].rid), f"{finding.kind}: {finding.text}")
    return bad


def _record_ids(paths: DatasetPaths, manifest: Sequence[ManifestLine]) -> Iterator[tuple[str, tuple[int, str]]]:
    """n and the hash of the ids of each whole record, by rid."""
    by_rid: dict[str, list[ManifestLine]] = {}
    for line in manifest:
        by_rid.setdefault(str(line.name.rid), []).append(line)
    for rid, lines in by_rid.items():
        n = lines[0].name.n
        parts = record_parts(n, lines)
        if parts is None:
            continue
        try:
            if len(parts) == 1:
                if (paths.root / parts[0].path).is_file():
                    yield rid, (n, parts[0].ids_xxh3)
                continue
            ids = [read_part(paths, part.path, part.name).ids.tobytes() for part in parts]
        except (FormatError, FileNotFoundError):
            continue
        yield rid, (n, xxh3_hex(ids))


# -- writing


def _quarantine(paths: DatasetPaths, facts: dict[str, FileFacts], result: Repair, at: str) -> None:
    for path, fact in facts.items():
        if fact.line is not None:
            continue
        make_folders(paths.quarantine)
        source = paths.root / path
        kept = paths.quarantine / source.name
        count = 1
        while kept.exists() or kept.is_symlink():
            count += 1
            kept = paths.quarantine / f"{source.name}.{count}"
        note = {"part": path, "reason": fact.reason, "by": "hs-client verify --repair", "at": at}
        text = msgspec.json.format(msgspec.json.encode(note), indent=1) + b"\n"
        write_durable(kept.with_name(f"{kept.name}.reason.json"), text)
        source.rename(kept)
        fsync_folder(paths.quarantine)
        fsync_folder(source.parent)
        result.quarantined[path] = fact.reason


def _replace(paths: DatasetPaths, path: Path, lines: Sequence[msgspec.Struct], result: Repair, at: str) -> None:
    if path.exists():
        kept = paths.root / "repairs" / at / path.parent.name / path.name
        make_folders(kept.parent)
        if not kept.exists():
            os.link(path, kept)
            fsync_folder(kept.parent)
        result.kept_in = f"repairs/{at}"
    write_durable(path, b"".join(map(encode_line, lines)))
    result.books.append(f"{path.parent.name}/{path.name}")


def _has_bad(findings: Sequence[Finding], path: Path) -> bool:
    where = f"{path.parent.name}/{path.name}"
    return any(finding.kind == "damaged line" and finding.where.startswith(where) for finding in findings)


def _write_manifests(
    done: Verification, kept: list[list[ManifestLine]], new: list[ManifestLine], result: Repair, at: str
) -> None:
    paths = done.books.paths
    own = paths.manifest_file(REPAIR_MANIFEST)
    wanted = {book.path: lines for book, lines in zip(done.books.manifests, kept, strict=True)}
    if new:
        make_folders(paths.manifest)
        wanted[own] = [*wanted.get(own, []), *new]
    known = {book.path: book.lines for book in done.books.manifests}
    for path, lines in wanted.items():
        if lines != known.get(path) or _has_bad(done.findings, path):
            _replace(paths, path, lines, result, at)


def _write_ledgers(done: Verification, mended: MendedLedgers, prompts: Sequence[Path], result: Repair, at: str) -> None:
    paths = done.books.paths
    known = {book.path.stem: book for book in done.books.ledgers}
    make_folders(paths.ledger)
    for run, lines in mended.ledgers.items():
        book = known.get(run)
        if (book is None and not lines) or (
            book is not None and book.lines == lines and not _has_bad(done.findings, book.path)
        ):
            continue
        head: list[LedgerLine] = []
        if not any(isinstance(line, RunStarted) for line in lines):
            head = [
                RunStarted(
                    run=run,
                    started_at=_started(done, run),
                    inputs=list(map(str, prompts)),
                    servers=[],
                    version="repaired",
                )
            ]
        _replace(paths, paths.ledger_file(run), [*head, *lines], result, at)


def _started(done: Verification, run: str) -> str:
    """When the first part of a run was stored, for a ledger that has lost its first line."""
    times = [line.stored_at for line in done.books.lines.values() if run_of_rid(line.part) == run and line.stored_at]
    return min(times, default="")
