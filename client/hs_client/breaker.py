"""When attempts fail one after the other, or nearly all of them, the fault is not the samples'. Pure logic."""

from __future__ import annotations

from collections import deque

__all__ = ["Breaker"]

_IN_A_ROW_AT_FIRST = 64
_IN_A_ROW = 512
_WINDOW = 1024
_SHARE = 0.95


class Breaker:
    """Counts the outcomes of attempts that the server took, and says when to stop sending.

    It trips on a run of failures, a short one while nothing has ever succeeded, and on the rate among the last
    `_WINDOW` outcomes, which a single success now and then does not reset.
    """

    def __init__(self) -> None:
        self._in_a_row = 0
        self._succeeded = False
        self._recent: deque[bool] = deque(maxlen=_WINDOW)
        self._failed = 0

    def succeeded(self) -> None:
        """A record is done."""
        self._in_a_row = 0
        self._succeeded = True
        self._note(failed=False)

    def failed(self) -> str:
        """An attempt has failed for a reason of its own; returns what went wrong in all, empty while it may go on."""
        self._in_a_row += 1
        self._note(failed=True)
        if self._in_a_row >= (_IN_A_ROW if self._succeeded else _IN_A_ROW_AT_FIRST):
            return f"the last {self._in_a_row} requests all failed"
        if len(self._recent) == _WINDOW and self._failed >= _SHARE * _WINDOW:
            return f"{self._failed} of the last {_WINDOW} requests failed"
        return ""

    def _note(self, *, failed: bool) -> None:
        if len(self._recent) == _WINDOW:
            self._failed -= self._recent[0]
        self._recent.append(failed)
        self._failed += failed
