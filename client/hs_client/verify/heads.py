"""Beginnings: the state of a token depends on the tokens up to it alone, so prompts that begin alike agree there.

They agree but for rounding, which differs with the shapes of batches. A wrong boundary, one rank's partial sum, rows
that moved by one, or the rows of another prompt do not fit in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["MIN_GROUP", "odd_members"]

MIN_GROUP = 5
_FLOOR = {"bfloat16": 0.05, "float16": 0.02, "float32": 0.005}
"""Differences below these are rounding, relative to the typical size of a channel."""

_TIMES_TYPICAL = 12.0
_MINORITY = 0.2


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
