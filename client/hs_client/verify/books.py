"""Reads the ledgers and manifests of a dataset line by line, lists its files, and holds them against each other.

No payload is read. Everything is kept: what `hs_client.verify.repair` writes anew is made from it.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from hs_client.verify.findings import TWO_CONTENTS, Finding
from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.index import DatasetIndex, record_parts
from hs_formats.jsonl import UNREADABLE, crc_fits
from hs_formats.ledger import Done, Failed, Intent, LedgerLine
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName
from hs_formats.regular import open_regular
from hs_formats.stored import CODECS, codec_of

__all__ = ["BookFile", "Books", "StoredFile", "read_books", "stored_part_name"]

Line = TypeVar("Line")

_NAME = re.compile(rb"hs-[0-9a-f]{8}-[0-9]{8}-[0-9]{2}(?:\.t[0-9]{7}-[0-9]{7}of[0-9]{7}\.r[0-9]{2}\.pt)?")
_YOUNG_S = 10.0
_PATIENCE_S = 1.0


@dataclass(slots=True)
class BookFile(Generic[Line]):
    """One JSON-lines file: its good lines, and those that could not be read, by line number from 1.

    `size_bytes`: of the file when it was read.
    """

    path: Path
    size_bytes: int = 0
    lines: list[Line] = field(default_factory=list)
    bad: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file below ``data``: `path` relative to the dataset, and the part it should hold, None for a foreign one."""

    path: str
    size_bytes: int
    name: PartName | None
    problem: str = ""


@dataclass(slots=True)
class Books:
    """All that the books say, and what is there.

    Attributes:
        files: of the data folder, by path relative to the dataset.
        lines: the manifest line that counts for each part, by part name.
        index: the done samples.
    """

    paths: DatasetPaths
    files: dict[str, StoredFile]
    ledgers: list[BookFile[LedgerLine]]
    manifests: list[BookFile[ManifestLine]]
    lines: dict[str, ManifestLine] = field(default_factory=dict)
    index: DatasetIndex = field(default_factory=lambda: DatasetIndex({}, {}, ()))
    findings: list[Finding] = field(default_factory=list)

    def intents(self) -> dict[str, Intent]:
        """The intents of all ledgers by rid."""
        return {line.rid: line for book in self.ledgers for line in book.lines if isinstance(line, Intent)}

    def unlisted(self) -> list[StoredFile]:
        """Stored parts that no manifest line names by their path."""
        named = {line.path for line in self.lines.values()}
        return [file for path, file in self.files.items() if path not in named and not file.problem]


def read_books(paths: DatasetPaths) -> Books:
    """Read and compare.

    Files are listed first and manifests read last: of a dataset that grows, nothing then looks lost.

    Raises:
        OSError: a file or folder cannot be read.
    """
    books = Books(
        paths,
        files={file.path: file for file in _list_files(paths)},
        ledgers=[_read_book(path, LedgerLine) for path in sorted(paths.ledger.glob("*.jsonl"))],
        manifests=_read_manifests(paths),
    )
    books.lines = _first_lines(books.manifests)
    if any(_is_young(paths, file) for file in books.unlisted()):
        time.sleep(_PATIENCE_S)  # a mover may just be about to write their lines
        paths.refresh("manifest")
        books.manifests = _read_manifests(paths)
        books.lines = _first_lines(books.manifests)
    books.index = DatasetIndex.build([book.lines for book in books.ledgers], books.lines.values())
    books.findings = [
        *_of_bad_lines(books.ledgers, _ledger_key),
        *_of_bad_lines(books.manifests, lambda line: line.part),
        *_of_manifests(books),
        *_of_files(books),
        *_of_ledgers(books),
        *_of_requests(books),
    ]
    return books


# -- reading


def _read_book(path: Path, kind: Any) -> BookFile[Any]:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
    book: BookFile[Any] = BookFile(path)
    sealed = False
    with open_regular(path, buffering=1 << 20) as file:
        for number, text in enumerate(file, start=1):
            book.size_bytes += len(text)
            if not text.strip():
                continue
            fits = crc_fits(text)
            try:
                # A version that writes no CRC may have begun the file; none goes back to it.
                if not text.endswith(b"\n") or fits is False or (sealed and fits is None):
                    raise msgspec.DecodeError("not as it was written")
                book.lines.append(decoder.decode(text))
                sealed = sealed or fits is True
            except UNREADABLE:
                book.bad[number] = text.removesuffix(b"\n")
    return book


def _read_manifests(paths: DatasetPaths) -> list[BookFile[ManifestLine]]:
    books: list[BookFile[ManifestLine]] = []
    for path in sorted(paths.manifest.glob("*.jsonl")):
        book = _read_book(path, ManifestLine)
        good: list[ManifestLine] = []
        for line in book.lines:
            if PartName.try_parse(line.part) is None:
                book.bad[-len(book.bad) - 1] = msgspec.json.encode(line)
            else:
                good.append(line)
        book.lines = good
        books.append(book)
    return books


def _first_lines(manifests: list[BookFile[ManifestLine]]) -> dict[str, ManifestLine]:
    lines: dict[str, ManifestLine] = {}
    for book in manifests:
        for line in book.lines:
            lines.setdefault(line.part, line)
    return lines


def stored_part_name(file_name: str) -> PartName | None:
    """The part that a stored file of this name holds; None where it is not such a name."""
    try:
        return PartName.try_parse(file_name.removesuffix(codec_of(file_name).suffix) + ".pt")
    except FormatError:
        return None


def _list_files(paths: DatasetPaths) -> Iterator[StoredFile]:
    for file in paths.data_files():
        file_name = file.path.rpartition("/")[2]
        name = stored_part_name(file_name)
        problem = ""
        if file_name.startswith(".") and file_name.endswith(".tmp"):
            problem = "temporary"
        elif not file.regular:
            problem = "it is no regular file"
        elif name is None:
            problem = "its name is not that of a stored part"
        elif file.path != paths.stored_name(name, codec_of(file_name).suffix):
            problem = f"it belongs into {Path(paths.stored_name(name, '')).parent}"
        yield StoredFile(file.path, file.size_bytes, name, problem)


def _is_young(paths: DatasetPaths, file: StoredFile) -> bool:
    try:
        return time.time() - paths.modified_s(file.path) < _YOUNG_S
    except FileNotFoundError:
        return False


# -- comparing


def _ledger_key(line: LedgerLine) -> str:
    return getattr(line, "rid", "")


def _of_bad_lines(books: list[BookFile[Any]], key: Any) -> Iterator[Finding]:
    known: set[str] | None = None
    for book in books:
        for number, text in book.bad.items():
            where = f"{book.path.parent.name}/{book.path.name}" + (f":{number}" if number > 0 else "")
            if known is None:
                known = {key(line) for other in books for line in other.lines}
            # A crash tears a line, and what it was about is noted again later. Anything else is damage.
            name = _NAME.search(text)
            torn = not text.rstrip().endswith(b"}") and (name is None or name[0].decode() in known)
            if torn:
                yield Finding("torn line", where, "cut by a crash; nothing is lost by it", severity="note")
            else:
                about = f" about {name[0].decode()}" if name else ""
                yield Finding("damaged line", where, f"it cannot be read{about}: {text[:60]!r}")


def _of_manifests(books: Books) -> Iterator[Finding]:
    for book in books.manifests:
        for line in book.lines:
            first = books.lines[line.part]
            fields = ("status", "path", "xxh3", "rows_xxh3", "ids_xxh3")
            differ = [name for name in fields if getattr(first, name) != getattr(line, name)]
            if line is not first and differ and "conflict" not in line.flags:
                text = f"two lines differ in {', '.join(differ)}; the first one counts"
                yield Finding("contradicting lines", f"{line.part} in manifest/{book.path.name}", text)
            try:
                if line.path:
                    books.paths.stored_file(line.path)
                if line.status == "stored":
                    suffix = codec_of(line.path).suffix
                    right = CODECS[line.codec].suffix if line.codec in CODECS else None
                    if line.path != books.paths.stored_name(line.name, suffix) or suffix != right:
                        raise FormatError(f"its path is {line.path!r} and its codec {line.codec!r}")
            except FormatError as error:
                yield Finding("wrong manifest line", f"{line.part} in manifest/{book.path.name}", str(error))


def _of_files(books: Books) -> Iterator[Finding]:
    for file in books.files.values():
        if file.problem == "temporary":
            text = "a mover is writing it, or died while it did; it removes it itself"
            yield Finding("temporary file", file.path, text, severity="note")
        elif file.problem:
            yield Finding("foreign file", file.path, file.problem)
    for file in books.unlisted():
        line = books.lines.get(str(file.name))
        text = "no manifest line names it" if line is None else f"the manifest says that {file.name} is {line.path!r}"
        yield Finding("no manifest line", file.path, text)


def _of_ledgers(books: Books) -> Iterator[Finding]:
    for broken in books.index.broken.values():
        yield Finding("no whole record", broken.rid, broken.reason, broken.sample_id)
    done: dict[str, set[str]] = defaultdict(set)
    claims: dict[str, set[str]] = defaultdict(set)
    intents: dict[str, Intent] = {}
    for book in books.ledgers:
        for line in book.lines:
            match line:
                case Done():
                    done[line.sample_id].add(line.rid)
                    claims[line.rid].add(line.sample_id)
                case Intent():
                    first = intents.setdefault(line.rid, line)
                    where = f"{line.rid} in ledger/{book.path.name}"
                    if first != line:
                        yield Finding("contradicting lines", where, "two intents differ", line.sample_id)
                    if line.rid[3:11] != book.path.stem:
                        yield Finding("wrong ledger line", where, "the intent is of another run", line.sample_id)
                case _:
                    pass
    for rid, samples in claims.items():
        if len(samples) > 1:
            for sample_id in sorted(samples):
                others = ", ".join(repr(other) for other in sorted(samples - {sample_id}))
                yield Finding("shared record", rid, f"it is done for {others} as well", sample_id)
    stored = {str(file.name.rid) for file in books.files.values() if file.name is not None}
    for sample_id, rids in done.items():
        if len(rids) > 1:
            yield from _of_rivals(books, sample_id, rids, intents=intents, stored=stored)
    for sample in books.index.samples.values():
        for part in sample.parts:
            if part.path not in books.files and not books.paths.has_file(part.path):
                yield Finding("missing file", part.path, "the record of this sample needs it", sample.sample_id)
        if not sample.mask_spans:
            text = "its mask is all zero: nothing to train on"
            yield Finding("empty mask", str(sample.rid), text, sample.sample_id, severity="note")


def _of_rivals(
    books: Books, sample_id: str, rids: Collection[str], *, intents: Mapping[str, Intent], stored: Collection[str]
) -> Iterator[Finding]:
    """Several done records of one sample, `stored` being those of which there is a file."""
    known = [intents[rid].ids_xxh3 for rid in rids if rid in intents]
    other = ", of other tokens" if len(set(known)) > 1 else ""
    text = f"{len(rids)} records are done{other}: the first counts, `hs-client prune` lists the others"
    yield Finding("done twice", min(rids), text, sample_id, severity="note")
    sample = books.index.samples.get(sample_id)
    if sample is None:
        return
    winner = str(sample.rid)
    content = intents[winner].content
    for rid in sorted(rid for rid in rids if rid in intents and rid in stored):
        if content and intents[rid].content not in ("", content):  # two clients at work at the same time can do that
            text = (
                f"it counts for the id {sample_id!r}, and {rid} is of another row with this id: give one of both rows"
                " another id and run it, then `hs-client prune --yes` removes the record that does not count"
            )
            yield Finding(TWO_CONTENTS, winner, text)


def _of_requests(books: Books) -> Iterator[Finding]:
    """Stored parts whose request no ledger knows, and whole records that nobody called done."""
    intents = books.intents()
    outcomes: set[str] = set()
    for book in books.ledgers:
        outcomes |= {line.rid for line in book.lines if isinstance(line, Done | Failed)}
    stored: dict[str, list[StoredFile]] = defaultdict(list)
    for file in books.files.values():
        if file.name is not None and not file.problem:
            stored[str(file.name.rid)].append(file)
    lines: dict[str, list[ManifestLine]] = defaultdict(list)
    for line in books.lines.values():
        lines[str(line.name.rid)].append(line)
    for rid, files in stored.items():
        intent = intents.get(rid)
        if intent is None:
            text = f"{len(files)} stored parts are of a request that no ledger knows"
            yield Finding("unknown request", rid, text)
        elif intent.sample_id not in books.index.samples and rid not in outcomes and record_parts(intent.n, lines[rid]):
            text = f"the record of sample {intent.sample_id!r} is whole; the next `hs-client run` takes it, or --repair"
            yield Finding("not called done", rid, text, severity="note")
