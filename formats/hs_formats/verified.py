"""Which samples `hs-client verify` found right: ``verified.json``, small, durable, and tied to what was looked at.

A sample is known by eight bytes over everything that decides what a reader gives for it: its id, the request, n, the
hash of its ids, its mask, and name and checksum of each part. When any of them changes the sample is not verified any
more. The payload itself is under the parts' checksums, which every reader compares.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.index import IndexedSample
from hs_formats.jsonl import UNREADABLE
from hs_formats.part import parse_struct
from hs_formats.regular import read_regular

__all__ = ["VerifiedSet", "sample_digest"]


def sample_digest(sample: IndexedSample) -> int:
    """64 bits that stand for `sample` and its record."""
    parts = [(line.part, line.xxh3) for line in sample.parts]
    known = (sample.sample_id, str(sample.rid), sample.n, sample.ids_xxh3, sample.mask_spans, parts)
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    verified_at: str
    checks: list[str]
    count: int
    samples: str
    xxh3: str
    format: str = "hs-verified"
    version: int = 1


class VerifiedSet:
    """The samples of one dataset that were verified.

    Attributes:
        verified_at: ISO 8601 UTC, when the last verification ended; "" without any.
        checks: names of what that verification looked at.
    """

    def __init__(self, digests: Iterable[int] = (), *, verified_at: str = "", checks: Iterable[str] = ()) -> None:
        self._digests: npt.NDArray[np.uint64] = np.unique(np.fromiter(digests, dtype="<u8"))
        self.verified_at = verified_at
        self.checks = tuple(checks)

    @classmethod
    def of(cls, samples: Iterable[IndexedSample], *, verified_at: str = "", checks: Iterable[str] = ()) -> VerifiedSet:
        """The set of just these samples."""
        return cls(map(sample_digest, samples), verified_at=verified_at, checks=checks)

    @classmethod
    def read(cls, paths: DatasetPaths) -> VerifiedSet:
        """What the dataset's ``verified.json`` says; nothing is verified where there is none.

        Raises:
            FormatError: the file is damaged or of another version.
            OSError: it cannot be read.
        """
        try:
            data: Mapping[str, Any] = msgspec.json.decode(read_regular(paths.verified), type=dict[str, Any])
        except FileNotFoundError:
            return cls()
        except UNREADABLE as error:
            raise FormatError(f"{paths.verified} is damaged: {error}") from error
        if (data.get("format"), data.get("version")) != ("hs-verified", 1):
            raise FormatError(
                f"{paths.verified} is {data.get('format')!r} version {data.get('version')!r}, not hs-verified 1"
            )
        try:
            stored = parse_struct(_Stored, data)
            raw = base64.b64decode(stored.samples, validate=True)
        except (FormatError, binascii.Error) as error:
            raise FormatError(f"{paths.verified} is damaged: {error}") from error
        if len(raw) != 8 * stored.count or xxhash.xxh3_128_hexdigest(raw) != stored.xxh3:
            raise FormatError(f"{paths.verified} is damaged: its samples do not have its checksum")
        return cls(np.frombuffer(raw, dtype="<u8").tolist(), verified_at=stored.verified_at, checks=stored.checks)

    def write(self, paths: DatasetPaths) -> None:
        """Replace the dataset's ``verified.json``, durably.

        Raises:
            OSError: the dataset cannot be written; the old file is still there.
        """
        raw = self._digests.tobytes()
        stored = _Stored(
            verified_at=self.verified_at,
            checks=list(self.checks),
            count=len(self),
            samples=base64.b64encode(raw).decode(),
            xxh3=xxhash.xxh3_128_hexdigest(raw),
        )
        paths.replace_verified(msgspec.json.encode(asdict(stored)) + b"\n")

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, sample: IndexedSample) -> bool:
        digest = np.uint64(sample_digest(sample))
        at = int(np.searchsorted(self._digests, digest))
        return at < len(self._digests) and bool(self._digests[at] == digest)

    def missing(self, samples: Iterable[IndexedSample]) -> list[str]:
        """Ids of those samples that are not verified."""
        return [sample.sample_id for sample in samples if sample not in self]
