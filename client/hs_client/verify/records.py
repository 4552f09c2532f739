"""Reads one record, or one stored file that is part of none, and says what is wrong with its bytes and values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hs_client.verify.books import StoredFile
from hs_client.verify.content import RecordFacts, RecordReader
from hs_client.verify.findings import Finding
from hs_client.verify.part_file import PartFile, read_part
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.index import IndexedSample
from hs_formats.manifest import ManifestLine

__all__ = ["RecordCheck", "check_other_file", "check_record"]


@dataclass(frozen=True, slots=True)
class RecordCheck:
    """What was found in one record; `facts` is None where it could not be read whole. `raw_bytes` were decoded."""

    sample: IndexedSample
    findings: tuple[Finding, ...]
    facts: RecordFacts | None
    raw_bytes: int


def check_record(paths: DatasetPaths, info: DatasetInfo, sample: IndexedSample) -> RecordCheck:
    """Read and judge the record of `sample`.

    Raises:
        OSError: the dataset cannot be read; a file that is merely missing is a finding.
    """
    findings: list[Finding] = []
    whole = True
    raw_bytes = 0
    reader = RecordReader(dtype=info.dtype, slots=len(info.boundaries) + 1, hidden_size=info.hidden_size)
    ids: list[bytes] = []
    for line in sample.parts:
        try:
            part = read_part(paths, line.path, line.name)
        except FileNotFoundError:
            findings.append(Finding("missing file", line.path, "the record of this sample needs it", sample.sample_id))
            whole = False
            continue
        except FormatError as error:
            findings.append(Finding("damaged file", line.path, _short(error, paths, line.path), sample.sample_id))
            whole = False
            continue
        raw_bytes += len(part.data)
        findings += _of_part(part, line, info, sample.sample_id)
        ids.append(part.ids.tobytes())
        if part.misfits(info):
            whole = False
        else:
            reader.add(part.ids, part.bits)
    if len(ids) == len(sample.parts) and xxh3_hex(ids) != sample.ids_xxh3:
        text = "the stored token ids are not those that the ledger says were sent"
        findings.append(Finding("other ids", str(sample.rid), text, sample.sample_id))
    facts = reader.facts() if whole and reader.rows == sample.n else None
    findings += [Finding(kind, str(sample.rid), text, sample.sample_id) for kind, text in reader.problems]
    return RecordCheck(sample, tuple(findings), facts, raw_bytes)


def _of_part(part: PartFile, line: ManifestLine, info: DatasetInfo, sample_id: str) -> Iterator[Finding]:
    unlike = part.unlike(line)
    if unlike:
        try:
            part.check_crc()
        except FormatError as error:
            yield Finding("damaged file", part.path, f"{error}; {unlike[0]}", sample_id)
        else:
            yield Finding("unlike its manifest line", part.path, "; ".join(unlike), sample_id)
    misfits = part.misfits(info)
    if misfits:
        yield Finding("unlike dataset.json", part.path, "; ".join(misfits), sample_id)
    if len(part.ids) and int(part.ids.min()) < 0:
        at = int(np.argmin(part.ids))
        text = f"token {line.name.start + at} has the id {int(part.ids[at])}"
        yield Finding("wrong token id", part.path, text, sample_id)


def check_other_file(paths: DatasetPaths, file: StoredFile, line: ManifestLine | None) -> list[Finding]:
    """A stored part of no done sample: only whether it is whole and as its manifest line says. No sample suffers.

    Raises:
        OSError: the dataset cannot be read.
    """
    if file.name is None:
        return []
    try:
        part = read_part(paths, file.path, file.name)
    except FileNotFoundError:
        return []  # pruned meanwhile
    except FormatError as error:
        return [Finding("damaged file", file.path, _short(error, paths, file.path))]
    unlike = part.unlike(line) if line is not None and line.path == file.path else []
    return [Finding("unlike its manifest line", file.path, "; ".join(unlike))] if unlike else []


def _short(error: Exception, paths: DatasetPaths, path: str) -> str:
    return str(error).replace(f"{paths.shown}/", "").removeprefix(f"{path}: ")  # the finding names the file already
