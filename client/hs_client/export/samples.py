"""Which samples an export holds, and in which order: fixed when it begins, kept in ``hs-samples.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from hs_client.export.errors import OtherExport
from hs_formats.durable import write_durable
from hs_formats.index import IndexedSample
from hs_formats.jsonl import UNREADABLE
from hs_formats.mask import supervised
from hs_formats.verified import VerifiedSet

__all__ = ["PlannedSample", "Selection", "read_samples", "select", "write_samples"]


class PlannedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample of an export: its place there, and what it is in the dataset.

    `n` tokens, `trained` of them to train on. `ids_xxh3` as in the ledger. `file` is relative to the export.
    """

    index: int
    sample_id: str
    rid: str
    n: int
    trained: int
    ids_xxh3: str
    file: str = ""


@dataclass(slots=True)
class Selection:
    """The samples to export, and how many were left out for which reason."""

    samples: list[PlannedSample] = field(default_factory=list)
    unverified: int = 0
    untrained: int = 0
    broken: int = 0


def select(sample_ids: Iterable[str], known: Mapping[str, IndexedSample], verified: VerifiedSet | None) -> Selection:
    """The samples of `sample_ids`, in order, that are whole, verified and have a token to train on.

    `verified` is None where unverified samples are wanted too.
    """
    chosen = Selection()
    for sample_id in sample_ids:
        sample = known.get(sample_id)
        if sample is None:
            chosen.broken += 1
        elif verified is not None and sample not in verified:
            chosen.unverified += 1
        elif not (trained := supervised(sample.mask_spans)):
            chosen.untrained += 1
        else:
            chosen.samples.append(
                PlannedSample(
                    index=len(chosen.samples),
                    sample_id=sample_id,
                    rid=str(sample.rid),
                    n=sample.n,
                    trained=trained,
                    ids_xxh3=sample.ids_xxh3,
                )
            )
    return chosen


def write_samples(path: Path, samples: Sequence[PlannedSample]) -> None:
    """Write the list, durably.

    Raises:
        OSError: it cannot be written.
    """
    write_durable(path, b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))


def read_samples(path: Path, known: Mapping[str, IndexedSample]) -> list[PlannedSample]:
    """The list of an export that was begun earlier.

    Raises:
        OtherExport: it cannot be read, or the dataset does not have these samples any more.
    """
    decoder = msgspec.json.Decoder(PlannedSample)
    try:
        samples = [decoder.decode(line) for line in path.read_bytes().splitlines() if line]
    except (OSError, *UNREADABLE) as error:
        raise OtherExport(out=path.parent, reason=f"{path.name} cannot be read: {error}") from None
    for sample in samples:
        now = known.get(sample.sample_id)
        was = (sample.rid, sample.ids_xxh3, sample.trained)
        if now is None or (str(now.rid), now.ids_xxh3, supervised(now.mask_spans)) != was:
            raise OtherExport(
                out=path.parent, reason=f"it holds sample {sample.sample_id!r} as the dataset no longer has it"
            )
    return samples
