"""Compares the records of a set with each other: rows that two share, states that fit in with no others."""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Collection, Iterator
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hs_client.verify.content import HEAD_POSITIONS, RecordFacts
from hs_client.verify.findings import Finding
from hs_client.verify.heads import Beginnings, odd_members
from hs_client.verify.sizes import odd_values
from hs_client.verify.tokens import Match, Sketch, TokenMeans, verdict
from hs_formats.index import IndexedSample

__all__ = ["SetComparison"]

_MAX_ROWS = 8_000_000
_SIZE_FLOOR = 0.05  # of a natural logarithm: 5 %
_COSINE_FLOOR = 0.01
_MIN_SAMPLES_FOR_TOKENS = 8


class _RowHashes:
    """Hashes of rows with the sample and token of each. Of very many only a share is kept, chosen by the hash itself,
    so that equal rows are kept together."""

    def __init__(self) -> None:
        self._kept: list[npt.NDArray[np.uint64]] = []
        self._count = 0
        self._mask = np.uint64(0)

    def add(self, sample: int, facts: RecordFacts) -> None:
        columns = np.empty((facts.n, 4), dtype=np.uint64)
        columns[:, 0], columns[:, 1] = facts.row_hashes, facts.prefix_hashes
        columns[:, 2], columns[:, 3] = sample, np.arange(facts.n)
        self._keep(columns)
        while self._count > _MAX_ROWS:
            self._mask = np.uint64(2 * int(self._mask) + 1)
            kept, self._kept, self._count = self._kept, [], 0
            for block in kept:
                self._keep(block)

    def _keep(self, columns: npt.NDArray[np.uint64]) -> None:
        columns = columns[columns[:, 0] & self._mask == 0]
        self._kept.append(columns)
        self._count += len(columns)

    def shared(self) -> Iterator[tuple[int, int, int, int]]:
        """Sample and token, twice, of neighbouring equal rows that follow different prompts."""
        if not self._kept:
            return
        rows = np.concatenate(self._kept)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        same = (rows[1:, 0] == rows[:-1, 0]) & (rows[1:, 1] != rows[:-1, 1]) & (rows[1:, 2] != rows[:-1, 2])
        for at in np.flatnonzero(same).tolist():
            yield int(rows[at, 2]), int(rows[at, 3]), int(rows[at + 1, 2]), int(rows[at + 1, 3])


class SetComparison:
    """Takes the facts of every readable record, then says which ones fit in with no others.

    A few hundred bytes a sample stay in memory; some channels of some tokens (33 kB a sample at most) go to temporary
    files.

    Args:
        dtype: of the dataset.
        slots: names of the slots, for texts.
    """

    def __init__(self, *, dtype: str, slots: list[str]) -> None:
        self._dtype = dtype
        self._slots = slots
        self._samples: list[IndexedSample] = []
        # Of all samples one after the other: an array object each would take many times the room.
        self._log_rms = array("f")
        self._spreads = array("f")
        self._cosines = array("f")
        self._cosine_spreads = array("f")
        self._beginnings = Beginnings()
        self._rows = _RowHashes()
        self._spool = tempfile.TemporaryFile(prefix="hs-verify-")  # noqa: SIM115  # closed by __exit__
        self._spooled: list[int] = []
        self._means: TokenMeans | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()
        self._beginnings.close()

    def add(self, sample: IndexedSample, facts: RecordFacts) -> None:
        """One record."""
        number = len(self._samples)
        self._samples.append(sample)
        self._log_rms.extend(facts.log_rms)
        self._spreads.extend(facts.spread)
        self._cosines.extend(facts.cosine)
        self._cosine_spreads.extend(facts.cosine_spread)
        hashes = facts.prefix_hashes[list(HEAD_POSITIONS[: len(facts.heads)])]
        self._beginnings.add(number, facts.heads, hashes.tolist())
        self._rows.add(number, facts)
        if self._means is None:
            self._means = TokenMeans(facts.sketch.states.shape[1])
        sketch = facts.sketch
        self._means.measure(sketch)
        self._spooled.append(len(sketch.ids))
        for column in (sketch.ids, sketch.before, sketch.after, sketch.states):
            self._spool.write(np.ascontiguousarray(column).data)

    def rms(self) -> list[float]:
        """Typical RMS of a state, by slot; none without samples."""
        if not self._samples:
            return []
        return [float(value) for value in np.exp(np.median(self._rows_of(self._log_rms), axis=0))]

    def _rows_of(self, values: array[float]) -> npt.NDArray[np.float32]:
        return np.frombuffer(values, dtype=np.float32).reshape(len(self._samples), -1)

    def findings(self, faulty: Collection[str] = ()) -> Iterator[Finding]:
        """What stands out, after the last `add`. All of it is suspicion; `faulty` samples are known to be wrong."""
        yield from self._of_shared_rows(faulty)
        yield from self._of_heads()
        yield from self._of_sizes()
        yield from self._of_tokens()

    def _finding(self, kind: str, number: int, text: str) -> Finding:
        sample = self._samples[number]
        return Finding(kind, str(sample.rid), text, sample.sample_id, "suspect")

    def _of_shared_rows(self, faulty: Collection[str]) -> Iterator[Finding]:
        """One of two samples has the other's rows. Which, only a model can say, unless one is known to be at fault."""
        told: dict[int, tuple[int, int, int]] = {}
        for one, token, other, other_token in self._rows.shared():
            told.setdefault(one, (token, other, other_token))
            told.setdefault(other, (other_token, one, token))
        for number, (token, other, other_token) in sorted(told.items()):
            partner = self._samples[other]
            if partner.sample_id in faulty and self._samples[number].sample_id not in faulty:
                continue
            text = f"token {token} has the last state of token {other_token} of {partner.sample_id!r}, another prompt"
            yield self._finding("rows of another sample", number, text)

    def _of_heads(self) -> Iterator[Finding]:
        told: set[int] = set()
        for at, members, heads in self._beginnings.groups():
            runs = [self._samples[number].rid.run for number in members]
            for odd, slot, off in odd_members(heads, runs, dtype=self._dtype):
                number = members[odd]
                if number not in told:
                    told.add(number)
                    text = (
                        f"token {HEAD_POSITIONS[at]}, {self._slots[slot]}: {off:.1%} off what {len(members) - 1} other "
                        "samples have that begin alike"
                    )
                    yield self._finding("unlike equal beginnings", number, text)

    def _of_sizes(self) -> Iterator[Finding]:
        if not self._samples:
            return
        counts = [sample.n for sample in self._samples]
        sizes = odd_values(self._rows_of(self._log_rms), self._rows_of(self._spreads), counts, floor=_SIZE_FLOOR)
        for number, slot, off in sizes:
            text = f"{self._slots[slot]}: its states are {np.exp(off):.3g} times as large as the set's"
            yield self._finding("implausible size", number, text)
        cosines, spreads = self._rows_of(self._cosines), self._rows_of(self._cosine_spreads)
        angles = odd_values(cosines, spreads, counts, floor=_COSINE_FLOOR)
        for number, slot, off in angles:
            text = f"{self._slots[slot]} and {self._slots[slot + 1]}: their cosine is off the set's by {off:+.3f}"
            yield self._finding("implausible angle", number, text)

    # -- tokens

    def _sketches(self, channels: int) -> Iterator[Sketch]:
        self._spool.seek(0)
        for count in self._spooled:
            data = self._spool.read(count * (3 * 8 + 4 * channels))
            ids, before, after = (np.frombuffer(data, np.int64, count, 8 * count * at) for at in range(3))
            states = np.frombuffer(data, np.float32, count * channels, 3 * 8 * count)
            yield Sketch(ids, before, after, states.reshape(count, channels))

    def _of_tokens(self) -> Iterator[Finding]:
        means = self._means
        if means is None or len(self._samples) < _MIN_SAMPLES_FOR_TOKENS:
            return
        for sketch in self._sketches(means.channels):
            means.add(sketch)
        whole: list[Match] = []
        second: list[Match] = []
        for sketch in self._sketches(means.channels):
            whole.append(means.match(sketch))
            second.append(means.match(sketch.second_half()))
        own = np.array([match.own for match in whole if match.scored])
        if not len(own):
            return
        typical = float(np.median(own))
        scatter = 1.4826 * float(np.median(np.abs(own - typical)))
        texts = {
            "shifted": "its states fit the ids of the tokens beside ({0:.2f}) better than their own ({1:.2f})",
            "other rows": "its states do not fit its token ids ({1:.2f}, where {2:.2f} is usual)",
        }
        for number, matches in enumerate(zip(whole, second, strict=True)):
            for match in matches:
                kind = verdict(match, typical, scatter)
                if kind:
                    shown = texts[kind].format(max(match.before, match.after), match.own, typical)
                    yield self._finding("shifted rows" if kind == "shifted" else "unlike its tokens", number, shown)
                    break
