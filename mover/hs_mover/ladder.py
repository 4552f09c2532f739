"""When to store with a cheaper codec, and when to go back. No I/O, no clock: one decision a time window.

A cheaper codec helps only where the encoders are the limit. Where the disk is, it makes things worse: it has more to
write. Where ``--limit-rate`` is, it gains nothing. So it takes both to step down: parts pile up, and the workers encode
all the time while the disk waits. Up again goes it as soon as the disk is the limit, or when the workers have so much
time left that the better codec fits in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hs_mover.meter import Load

__all__ = ["LADDER", "WINDOW_S", "Ladder", "rungs_between"]

WINDOW_S = 2.0

LADDER = ("default", "fast", "none")
"""From the smallest files to the least work."""

_WORK: Mapping[str, float] = MappingProxyType({"default": 1.0, "fast": 0.75, "none": 0.4})
"""Time of reading, checking and encoding, relative to ``default``."""

_BUSY = 0.85
_ENCODING = 0.6
_DISK_SYNCING = 0.6
_DISK_WRITING = 0.5
_DOWN_AFTER = 3
_UP_AFTER = 5
_UP_AFTER_MOST = 160
_DISK_AFTER = 2


def rungs_between(codec: str, floor: str) -> tuple[str, ...]:
    """The codecs to choose from, best first: only `codec` where it has no place on the ladder, or is below `floor`."""
    if codec not in LADDER or floor not in LADDER:
        return (codec,)
    first, last = LADDER.index(codec), LADDER.index(floor)
    return LADDER[first : last + 1] if first <= last else (codec,)


class Ladder:
    """`current` is the codec to store with."""

    def __init__(self, rungs: Sequence[str]) -> None:
        self._rungs = tuple(rungs)
        self._at = 0
        self._encoders = 0
        self._disk = 0
        self._spare = 0
        self._up_after = _UP_AFTER
        self._since_up = 2 * _UP_AFTER_MOST

    @property
    def current(self) -> str:
        """Name of a codec."""
        return self._rungs[self._at]

    def update(self, load: Load, *, pressed: bool) -> str:
        """Take one window into account; returns what to say when the codec has changed, else "".

        Args:
            load: of the window.
            pressed: parts pile up in scratch.
        """
        disk = load.syncing >= _DISK_SYNCING or load.writing >= _DISK_WRITING
        encoders = not disk and load.encoding >= _ENCODING and load.encoding + load.writing >= _BUSY
        self._since_up += 1
        self._disk = self._disk + 1 if disk else 0
        self._encoders = self._encoders + 1 if encoders and pressed else 0
        self._spare = self._spare + 1 if self._would_fit(load) else 0  # also when parts pile up: for another reason
        if self._encoders >= _DOWN_AFTER and self._at + 1 < len(self._rungs):
            too_early = self._since_up <= 2 * self._up_after  # then more time is taken over the next step up
            self._up_after = min(2 * self._up_after, _UP_AFTER_MOST) if too_early else _UP_AFTER
            return self._step(1, f"parts pile up and the encoders are the limit ({load.encoding:.0%} busy)")
        if self._at and self._disk >= _DISK_AFTER:
            return self._step(
                -1, f"the disk is the limit (waited for {max(load.syncing, load.writing):.0%} of the time)"
            )
        if self._at and self._spare >= self._up_after:
            return self._step(-1, f"the encoders have time again ({load.encoding:.0%} busy)")
        return ""

    def _would_fit(self, load: Load) -> bool:
        if not self._at:
            return False
        better = self._rungs[self._at - 1]
        return load.encoding * _WORK[better] / _WORK[self.current] < _BUSY - 0.1

    def _step(self, by: int, why: str) -> str:
        before = self.current
        self._at += by
        self._encoders = self._disk = self._spare = 0
        if by < 0:
            self._since_up = 0
        return f"codec {self.current} instead of {before}: {why}"
