"""The values of some samples, slot by slot: sizes of states, channels that stand out, how small they are stored.

Samples are drawn at random, always the same ones. Numpy only; one part is in memory at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hs_client.verify.content import as_floats
from hs_client.verify.part_file import read_part
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.index import IndexedSample
from hs_formats.stored import open_stored

__all__ = ["OUTLIER_TIMES", "Outlier", "SlotValues", "ValueFacts", "read_values", "slot_names"]

OUTLIER_TIMES = 8.0
"""A channel stands out when its RMS is so many times that of the median channel."""

_SHOWN_OUTLIERS = 5
_BLOCK_BYTES = 8 << 20

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outlier:
    """A channel that stands out: its RMS, and its share of the sum of squares of the whole slot, 0 to 1."""

    channel: int
    rms: float
    share: float


@dataclass(frozen=True, slots=True)
class SlotValues:
    """One slot over the tokens that were read, without the first token of each sample where not said otherwise.

    Attributes:
        name: ``boundary 3`` or ``last state``.
        low: 5th percentile over tokens of a state's RMS.
        rms: median.
        high: 95th percentile.
        first_rms: median over the first tokens, which in most models are unlike all others; None where none was read.
        max_abs: largest magnitude, the first tokens' included.
        channel_rms: [H], over tokens.
        outliers: the channels that stand out most, largest first, and `outlier_count` of how many.
        raw_bytes: of the slot's states in parts whose codec stores slots apart, and `stored_bytes` what became of them.
    """

    name: str
    low: float
    rms: float
    high: float
    first_rms: float | None
    max_abs: float
    channel_rms: Doubles
    outliers: tuple[Outlier, ...]
    outlier_count: int
    raw_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """What was read: `slots` is empty where no sample could be. `unreadable` are texts, one a sample."""

    samples: int
    tokens: int
    slots: Sequence[SlotValues]
    unreadable: Sequence[str]


def slot_names(info: DatasetInfo) -> list[str]:
    """Of the dataset's slots, in order."""
    return [*(f"boundary {boundary}" for boundary in info.boundaries), "last state"]


def read_values(
    paths: DatasetPaths,
    info: DatasetInfo,
    samples: Sequence[IndexedSample],
    count: int,
    *,
    seen: Callable[[int, int], object],
) -> ValueFacts:
    """Read up to `count` of `samples`; `seen` is told after each how many were read, and of how many.

    Damaged samples are named in the result; nothing of them is in its numbers.
    """
    drawn = random.Random(0).sample(samples, min(count, len(samples)))  # noqa: S311 - no secret
    total = _Sums(len(info.boundaries) + 1, info.hidden_size)
    unreadable: list[str] = []
    good = 0
    for number, sample in enumerate(drawn, 1):
        own = _Sums(total.slots, info.hidden_size)
        try:
            for bits, first, slot_bytes in _parts(paths, info, sample):
                own.add(bits, info.dtype, first=first)
                own.add_bytes(slot_bytes, bits[:, 0].nbytes)
        except (FormatError, OSError) as error:
            unreadable.append(f"{sample.sample_id}: {error}")
        else:
            total.join(own)
            good += 1
        seen(number, len(drawn))
    return ValueFacts(good, total.tokens, total.result(slot_names(info)), unreadable)


def _parts(
    paths: DatasetPaths, info: DatasetInfo, sample: IndexedSample
) -> Iterator[tuple[npt.NDArray[np.unsignedinteger], bool, Sequence[int]]]:
    for line in sample.parts:
        part = read_part(paths, line.path, line.name)
        if part.xxh3 != line.xxh3:
            raise FormatError(f"{line.path} is not what the manifest says: its checksum differs")
        if wrong := part.misfits(info):
            raise FormatError(f"{line.path}: {wrong[0]}")
        with open_stored(paths.stored(line.path)) as original:
            slot_bytes = original.slot_bytes()
        yield part.bits, line.name.start == 0, slot_bytes


@dataclass(slots=True)
class _Sums:
    """Sums over tokens, for each slot."""

    slots: int
    channels: int
    tokens: int = 0
    later: int = 0
    squares: Doubles = field(init=False)
    max_abs: Doubles = field(init=False)
    token_rms: list[Doubles] = field(default_factory=list)
    first_rms: list[Doubles] = field(default_factory=list)
    raw_bytes: list[int] = field(init=False)
    stored_bytes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.squares = np.zeros((self.slots, self.channels))
        self.max_abs = np.zeros(self.slots)
        self.raw_bytes = [0] * self.slots
        self.stored_bytes = [0] * self.slots

    def add(self, bits: npt.NDArray[np.unsignedinteger], dtype: str, *, first: bool) -> None:
        """Rows of all slots [m, S, H]; `first`: row 0 is the first token of its sample."""
        step = max(1, _BLOCK_BYTES // (4 * self.slots * self.channels))
        for start in range(0, len(bits), step):
            values = as_floats(bits[start : start + step], dtype)
            self.max_abs = np.maximum(self.max_abs, np.abs(values).max(axis=(0, 2)))
            squares = np.square(values, dtype=np.float64)
            if not np.isfinite(squares.sum()):
                raise FormatError("its states are not finite")
            rms = np.sqrt(squares.mean(axis=2))
            skip = int(first and start == 0)
            self.first_rms += list(rms[:skip])
            self.token_rms.append(rms[skip:])
            self.squares += squares[skip:].sum(axis=0)
            self.tokens += len(values)
            self.later += len(values) - skip

    def add_bytes(self, stored: Sequence[int], raw: int) -> None:
        """What a part takes by slot, and would take raw; `stored` is empty where the codec cannot tell."""
        for slot, count in enumerate(stored):
            self.raw_bytes[slot] += raw
            self.stored_bytes[slot] += count

    def join(self, other: _Sums) -> None:
        """Add all of `other`."""
        self.tokens += other.tokens
        self.later += other.later
        self.squares += other.squares
        self.max_abs = np.maximum(self.max_abs, other.max_abs)
        self.token_rms += other.token_rms
        self.first_rms += other.first_rms
        for slot in range(self.slots):
            self.raw_bytes[slot] += other.raw_bytes[slot]
            self.stored_bytes[slot] += other.stored_bytes[slot]

    def result(self, names: Sequence[str]) -> list[SlotValues]:
        """Of each slot; nothing where there was no token but first ones."""
        if not self.later:
            return []
        low, middle, high = np.percentile(np.concatenate(self.token_rms), (5, 50, 95), axis=0)
        first = np.median(np.stack(self.first_rms), axis=0) if self.first_rms else None
        channel_rms = np.sqrt(self.squares / self.later)
        return [
            SlotValues(
                name=name,
                low=float(low[slot]),
                rms=float(middle[slot]),
                high=float(high[slot]),
                first_rms=None if first is None else float(first[slot]),
                max_abs=float(self.max_abs[slot]),
                channel_rms=channel_rms[slot],
                outliers=outliers[:_SHOWN_OUTLIERS],
                outlier_count=len(outliers),
                raw_bytes=self.raw_bytes[slot],
                stored_bytes=self.stored_bytes[slot],
            )
            for slot, name in enumerate(names)
            for outliers in [_outliers(channel_rms[slot])]
        ]


def _outliers(channel_rms: Doubles) -> tuple[Outlier, ...]:
    limit = OUTLIER_TIMES * float(np.median(channel_rms))
    squares = np.square(channel_rms)
    whole = float(squares.sum()) or 1.0
    found = [int(channel) for channel in np.argsort(-channel_rms, kind="stable") if channel_rms[channel] > limit]
    return tuple(Outlier(channel, float(channel_rms[channel]), float(squares[channel]) / whole) for channel in found)
