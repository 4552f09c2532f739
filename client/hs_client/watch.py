"""When a run gives up: a server says nothing, or storage does not move, for too long. And what it says meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hs_client.errors import MoverSilent, ServerGone, StorageStuck
from hs_formats.control import MoverState, now_s

__all__ = ["Announcer", "ServerWatch", "StorageWatch"]

_QUIET_S = 5.0
_NUMBER = re.compile(r"[0-9]+")


class Announcer:
    """Says what a run waits for, once per change. Times are of one monotonic clock, in seconds."""

    def __init__(self, say: Callable[[str], None], *, at_s: float) -> None:
        self._say = say
        self._said = ""
        self._waited_s = at_s

    def announce(self, reason: str, at_s: float) -> None:
        """The run waits for `reason`; numbers in it that count on are no change."""
        self._waited_s = at_s
        kind = _NUMBER.sub("#", reason)
        if kind != self._said:
            self._said = kind
            self._say(f"waiting for {reason}")

    def calm(self, at_s: float, *, waiting: bool) -> None:
        """Called now and then: after a while without waiting the next wait is announced anew."""
        if waiting:
            self._waited_s = at_s
        elif at_s - self._waited_s > _QUIET_S:
            self._said = ""


class ServerWatch:
    """Remembers when a server last gave a sign of life."""

    def __init__(self, url: str, *, timeout_s: float, at_s: float) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._heard_s = at_s

    def heard(self, at_s: float) -> None:
        """The server gave a sign of life, or was asked for the first one."""
        self._heard_s = max(self._heard_s, at_s)

    def check(self, at_s: float, *, in_flight: int, left: int) -> None:
        """Call while requests may be sent.

        Raises:
            ServerGone: requests are in flight, and neither an answer nor a part came for too long.
        """
        silent_s = at_s - self._heard_s
        if in_flight and silent_s > self._timeout_s:
            reason = f"{in_flight} requests in flight, and neither an answer nor a part file"
            raise ServerGone(url=self._url, seconds=silent_s, reason=reason, left=left)


class StorageWatch:
    """Remembers when storage last made progress.

    Args:
        scratch: for messages, as is `dst`, the mover's destination.
        timeout_s: how long nothing may move.
        at_s: now.
    """

    def __init__(self, scratch: Path, *, dst: str, timeout_s: float, at_s: float) -> None:
        self._scratch = scratch
        self._dst = dst
        self._timeout_s = timeout_s
        self._moved_s = at_s
        self._mover_progress_s = -1.0

    def moved(self, at_s: float) -> None:
        """Something was granted, moved or freed."""
        self._moved_s = max(self._moved_s, at_s)

    def check(self, at_s: float, *, mover: MoverState | None, reason: str, waiting: bool, left: int) -> None:
        """Call now and then; `waiting`: something waits for storage, `reason` says for what where that is known.

        Raises:
            MoverSilent: the mover has been silent for too long.
            StorageStuck: it lives, but nothing moved, was granted or freed.
        """
        if mover is not None and mover.last_progress_s != self._mover_progress_s:
            self._mover_progress_s = mover.last_progress_s
            self.moved(at_s)
        if not waiting:
            self.moved(at_s)
        stuck_s = at_s - self._moved_s
        if stuck_s <= self._timeout_s:
            return
        scratch = self._scratch
        if mover is None or not mover.alive(now_s()):
            raise MoverSilent(
                reason="the mover has been silent", seconds=stuck_s, left=left, scratch=scratch, dst=self._dst
            )
        if mover.state != "moving":
            reason = f"the mover holds: {mover.reason}"
        raise StorageStuck(seconds=stuck_s, reason=reason or "the mover stores nothing", left=left, scratch=scratch)
