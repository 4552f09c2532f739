"""Beginnings: the state of a token depends on the tokens up to it alone, so prompts that begin alike agree there.

They agree but for rounding, which differs with the shapes of batches. A wrong boundary, one rank's partial sum, rows
that moved by one, or the rows of another prompt do not fit in.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MIN_GROUP", "Beginnings", "odd_members"]

MIN_GROUP = 5
_MOST = 20_000
"""Of a larger group, as where a tokenizer begins each text with its own token, shares are judged: of each run's samples
some are in all of them."""

_FLOOR = {"bfloat16": 0.05, "float16": 0.02, "float32": 0.005}
"""Differences below these are rounding, relative to the typical size of a channel."""

_TIMES_TYPICAL = 12.0
_MINORITY = 0.2


class Beginnings:
    """States of the first tokens of many prompts, in a temporary file, and which of the prompts begin alike.

    A few bytes a state stay in memory.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="hs-verify-")  # noqa: SIM115  # closed by `close`
        self._shape: tuple[int, int] = (0, 0)
        self._count = 0
        self._hashes: list[array[int]] = []
        self._samples: list[array[int]] = []
        self._places: list[array[int]] = []

    def add(self, sample: int, heads: npt.NDArray[np.float16], hashes: Sequence[int]) -> None:
        """A prompt with a number above all before.

        Args:
            heads: [P, S, C], states of its tokens at the first P positions that are looked at.
            hashes: P hashes of the ids up to each of these tokens.
        """
        while len(self._hashes) < len(heads):
            self._hashes.append(array("Q"))
            self._samples.append(array("Q"))
            self._places.append(array("Q"))
        for at, known in enumerate(hashes):
            self._hashes[at].append(known)
            self._samples[at].append(sample)
            self._places[at].append(self._count)
            self._count += 1
        self._shape = heads.shape[1:]
        self._file.write(np.ascontiguousarray(heads, dtype=np.float16).data)

    def groups(self) -> Iterator[tuple[int, list[int], npt.NDArray[np.float16]]]:
        """Groups of at least MIN_GROUP that begin alike, by the first sample of each: the position in the list of
        those that are looked at, the samples ascending, and their states [N, S, C]. No more is added then."""
        if not self._count:
            return
        self._file.flush()
        states = np.memmap(self._file, np.float16, "r", shape=(self._count, *self._shape))
        found: list[tuple[int, int, npt.NDArray[np.intp]]] = []
        for at, column in enumerate(self._hashes):
            hashes = np.frombuffer(column, dtype=np.uint64)
            order = np.argsort(hashes, kind="stable")
            edges = np.flatnonzero(np.diff(hashes[order])) + 1
            large = (members for members in np.split(order, edges) if len(members) >= MIN_GROUP)
            found += [(self._samples[at][int(members[0])], at, members) for members in large]
        for _, at, members in sorted(found, key=lambda item: item[:2]):
            shares = -(-len(members) // _MOST)
            for share in range(shares):
                picked = members[share::shares]
                places = np.frombuffer(self._places[at], dtype=np.uint64)[picked]
                yield at, np.frombuffer(self._samples[at], dtype=np.uint64)[picked].tolist(), states[places]

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def odd_members(heads: npt.NDArray[np.float16], runs: Sequence[str], *, dtype: str) -> Iterator[tuple[int, int, float]]:
    """Those of a group whose state differs from that of the others.

    Args:
        heads: [N, S, C], some channels of the state of one token after the same prompt, N at least MIN_GROUP.
        runs: the run that each of the N is of.
        dtype: of the dataset.

    Yields:
        Index, the slot that differs most, and by how much, in typical sizes of a channel.
    """
    states = heads.astype(np.float32)
    typical = np.median(states, axis=0)
    size = np.median(np.abs(typical), axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        off = np.median(np.abs(states - typical), axis=2) / np.maximum(size, np.finfo(np.float32).tiny)
    off = np.nan_to_num(off, nan=np.inf)
    limit = np.maximum(_FLOOR[dtype], _TIMES_TYPICAL * np.median(off, axis=0))
    odd = np.flatnonzero((off > limit).any(axis=1)).tolist()
    if len(odd) > _MINORITY * len(states):
        # So many that the token itself may have two states, as where a router is undecided: no fault, unless a whole
        # run is apart from the others.
        usual = {runs[at] for at in set(range(len(states))) - set(odd)}
        odd = [at for at in odd if runs[at] not in usual]
    for at in odd:
        slot = int((off[at] / limit).argmax())
        yield at, slot, float(off[at, slot])
