"""A dataset that samples are taken from: its description, its whole samples, and the lines of its books about each."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from hs_client.info_command import open_dataset
from hs_client.subset.query import Candidate
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError, PreflightError
from hs_formats.index import BrokenSample, DatasetIndex
from hs_formats.ledger import Done, Intent, RunStarted, read_ledger
from hs_formats.location import Location
from hs_formats.manifest import ManifestLine, ManifestReader
from hs_formats.names import rid_of_part
from hs_formats.verified import VerifiedSet

__all__ = ["Source", "open_source"]


@dataclass(frozen=True, slots=True)
class Source:
    """What one dataset holds.

    Attributes:
        candidates: its whole samples, in their order.
        broken: done samples without a whole record.
        runs: first lines of its ledgers, by run.
        lines: manifest lines by rid, those of dropped copies too.
    """

    paths: DatasetPaths
    info: DatasetInfo
    candidates: tuple[Candidate, ...]
    broken: tuple[BrokenSample, ...]
    runs: dict[str, RunStarted]
    lines: dict[str, list[ManifestLine]]
    verified: VerifiedSet


def open_source(dataset: Location) -> Source:
    """Read the books of `dataset`.

    Raises:
        PreflightError: it is no dataset, or its books cannot be read.
    """
    paths = open_dataset(dataset)
    try:
        info = paths.read_info()
        ledgers = [read_ledger(path) for path in sorted(paths.ledger.glob("*.jsonl"))]
        manifest = ManifestReader(paths.manifest).poll()
        verified = VerifiedSet.read(paths)
    except (FormatError, OSError) as error:
        raise PreflightError(f"{dataset} cannot be read: {error}") from None
    if info is None:
        raise PreflightError(f"{dataset} has lost its dataset.json just now")
    index = DatasetIndex.build(ledgers, manifest)
    intents: dict[str, Intent] = {}
    dones: dict[str, Done] = {}
    runs: dict[str, RunStarted] = {}
    for ledger in ledgers:
        for line in ledger:
            match line:
                case Intent():
                    intents[line.rid] = line
                case Done():
                    dones.setdefault(line.rid, line)
                case RunStarted():
                    runs.setdefault(line.run, line)
                case _:
                    pass
    lines: dict[str, list[ManifestLine]] = defaultdict(list)
    for part in manifest:
        lines[rid_of_part(part.part)].append(part)
    candidates = tuple(
        Candidate(sample, intents[str(sample.rid)], dones[str(sample.rid)], sample in verified)
        for sample in index.samples.values()
    )
    return Source(paths, info, candidates, tuple(index.broken.values()), runs, lines, verified)
