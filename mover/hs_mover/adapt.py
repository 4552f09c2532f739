"""The codec a lane stores with now: a look at the clock, the meter and the backlog for `hs_mover.ladder`."""

from __future__ import annotations

import logging

from hs_formats.stored import CODECS, Codec
from hs_mover.config import MoverConfig
from hs_mover.ladder import WINDOW_S, Ladder, rungs_between
from hs_mover.meter import Load, Meter

__all__ = ["CodecChoice"]

_log = logging.getLogger(__name__)

_PRESSED_SHARE = 0.25
"""Parts pile up when they fill this share of what clients may fill."""


class CodecChoice:
    """`codec` changes only within `look`."""

    def __init__(self, config: MoverConfig, meter: Meter) -> None:
        self.codec: Codec = CODECS[config.codec]
        self._threads = config.threads
        self._meter = meter
        self._before = meter.read()
        rungs = rungs_between(config.codec, config.codec_floor)
        self._ladder = Ladder(rungs) if len(rungs) > 1 else None

    def look(self, at_s: float, *, backlog_bytes: int, limit_bytes: int) -> None:
        """Decide anew where a time window has passed; `at_s` is on the monotonic clock."""
        if self._ladder is None or at_s - self._before.at_s < WINDOW_S:
            return
        totals = self._meter.read()
        load = Load.between(self._before, totals, threads=self._threads)
        self._before = totals
        said = self._ladder.update(load, pressed=backlog_bytes > _PRESSED_SHARE * limit_bytes)
        if said:
            _log.info("%s", said)
            self.codec = CODECS[self._ladder.current]
