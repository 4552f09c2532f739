"""The destination's troubles: while it is full, gone or failing, one part at a time tries it, ever more rarely."""

from __future__ import annotations

import logging
import time

from hs_formats.location import Location
from hs_mover.destination import explain

__all__ = ["FIRST_RETRY_S", "LAST_RETRY_S", "Trouble"]

_log = logging.getLogger(__name__)

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 8.0


class Trouble:
    """`reason` is "" while the destination works."""

    def __init__(self, root: Location) -> None:
        self.reason = ""
        self.retry_at_s = 0.0
        self._root = root
        self._since_s = 0.0
        self._wait_s = FIRST_RETRY_S

    def __bool__(self) -> bool:
        return bool(self.reason)

    def may_try(self, at_s: float) -> bool:
        """It works, or it is time to look whether it does again; `at_s` is on the monotonic clock."""
        return not self.reason or at_s >= self.retry_at_s

    def begin(self, error: OSError) -> bool:
        """An operation failed; True when that is news."""
        at_s, reason = time.monotonic(), explain(error, self._root)
        first = not self.reason
        if first:
            self._since_s, self._wait_s = at_s, FIRST_RETRY_S
        else:
            self._wait_s = min(self._wait_s * 2, LAST_RETRY_S)
        if reason != self.reason:
            _log.warning("holding: %s; sources are kept", reason)
        self.reason = reason
        self.retry_at_s = at_s + self._wait_s
        return first

    def end(self) -> None:
        """An operation went well that was begun after the last failure."""
        if self.reason:
            _log.info("going on after %.0f s: %s works again", time.monotonic() - self._since_s, self._root)
            self.reason = ""
