"""`hs-client info`: what a dataset holds and how it came about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from hs_client.generate.answers import answer_lines
from hs_client.tally import show_bytes
from hs_formats.dataset import DatasetPaths, dataset_paths
from hs_formats.errors import FormatError, PreflightError
from hs_formats.index import DatasetIndex
from hs_formats.ledger import Failed, Rejected, RunStarted, iter_ledger
from hs_formats.location import Location
from hs_formats.mask import supervised
from hs_formats.verified import VerifiedSet

__all__ = ["info_lines", "open_dataset"]

_SHOWN_BELOW = 3
_SHOWN_RUNS = 10
"""More would push the dataset itself off the screen."""


def open_dataset(dataset: Location) -> DatasetPaths:
    """The dataset folder, or the dataset in an object store.

    Raises:
        PreflightError: it is none.
    """
    try:
        paths = dataset_paths(dataset)
        info = paths.read_info()
    except (FormatError, OSError) as error:
        raise PreflightError(f"{dataset} cannot be read: {error}") from None
    if info is None:
        below = _datasets_below(dataset)
        which = f", such as {', '.join(below)}" if below else ""
        raise PreflightError(
            f"{dataset} is no dataset: it has no dataset.json; give the folder below the destination{which}"
        )
    return paths


def _datasets_below(folder: Location) -> list[str]:
    """The first datasets of a destination on a disk, for whoever named that."""
    if not isinstance(folder, Path):
        return []
    return sorted(str(found.parent) for found in folder.glob("*/dataset.json"))[:_SHOWN_BELOW]


def info_lines(dataset: Location) -> Iterator[str]:
    """Facts about the dataset, a line each.

    Raises:
        PreflightError: it is none, or cannot be read.
    """
    paths = open_dataset(dataset)
    info = paths.read_info()
    try:
        index = DatasetIndex.load(paths)
        verified = VerifiedSet.read(paths)
    except (FormatError, OSError) as error:
        raise PreflightError(f"{dataset}: {error}") from None
    samples = index.samples.values()
    tokens = sum(sample.n for sample in samples)
    raw = sum(line.raw_bytes for sample in samples for line in sample.parts)
    stored = sum(line.stored_bytes for sample in samples for line in sample.parts)
    if info is not None:
        yield f"dataset    {dataset}"
        yield f"model      {info.model}, {info.num_layers} layers, hidden size {info.hidden_size}, {info.dtype}"
        yield f"slots      boundaries {info.boundaries} and the last state ({info.last_state})"
        turns = f", trained on {info.train_on} turns of the assistant" if info.train_on else ""
        arguments = (
            f", template arguments {info.template_arguments}" if info.template_arguments not in ("", "{}") else ""
        )
        yield f"tokenizer  {info.tokenizer}{turns}{arguments}"
    yield f"samples    {len(index.samples)} done, {sum(len(sample.parts) for sample in samples)} parts"
    if verified.verified_at:
        count = len(index.samples) - len(verified.missing(index.samples.values()))
        yield f"verified   {count} samples, {verified.verified_at}, {', '.join(verified.checks)}"
    else:
        yield "verified   never: hs-client verify"
    if index.broken:
        yield f"broken     {len(index.broken)} done samples have no whole record: hs-client verify names them"
    trained = sum(supervised(sample.mask_spans) for sample in samples)
    yield f"tokens     {tokens:,}, of which {trained:,} to train on"
    ratio = f", {raw / stored:.2f} times smaller" if stored else ""
    yield f"bytes      {show_bytes(raw)} raw, {show_bytes(stored)} stored{ratio}"
    if info is not None and info.generation:
        yield f"generation {info.generation}"
    try:
        yield from answer_lines(paths)
    except OSError as error:
        raise PreflightError(f"{dataset}: {error}") from None
    yield from _runs(paths)


def _runs(paths: DatasetPaths) -> Iterator[str]:
    found: list[tuple[str, str]] = []
    for path in sorted(paths.ledger.glob("*.jsonl")):
        counts: Counter[str] = Counter()
        started, inputs = "", ""
        for line in iter_ledger(path):
            match line:
                case RunStarted():
                    started, inputs = line.started_at, ", ".join(line.inputs)
                case Failed():
                    counts[f"failed ({line.kind})"] += 1
                case Rejected():
                    counts["rejected"] += 1
                case _:
                    counts[type(line).__name__.lower()] += 1
        shown = ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "nothing sent"
        found.append((started, f"run        {path.stem}  {started or '?'}, {inputs or '?'}: {shown}"))
    found.sort()
    if len(found) > _SHOWN_RUNS:
        yield f"runs       {len(found) - _SHOWN_RUNS} earlier ones, and the newest: hs-client report has all"
    for _, text in found[-_SHOWN_RUNS:]:
        yield text
