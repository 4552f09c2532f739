"""When a run gives up: the server says nothing, or storage does not move, for too long. And what it says meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from hs_client.errors import MoverSilent, ServerGone, StorageStuck
from hs_client.settings import RunSettings
from hs_formats.control import MoverState, now_s

__all__ = ["Watch"]

_QUIET_S = 5.0
_NUMBER = re.compile(r"[0-9]+")


class Watch:
    """Remembers when server and storage last made progress. Times are of one monotonic clock, in seconds.

    Args:
        settings: for the time-outs and names.
        dst: the mover's destination, for messages.
        at_s: now.
        say: prints a line for the user.
    """

    def __init__(self, settings: RunSettings, *, dst: Path, at_s: float, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._dst = dst
        self._say = say
        self._heard_s = at_s
        self._moved_s = at_s
        self._mover_progress_s = -1.0
        self._said = ""
        self._waited_s = at_s

    def heard(self, at_s: float) -> None:
        """The server gave a sign of life, or was asked for the first one."""
        self._heard_s = max(self._heard_s, at_s)

    def moved(self, at_s: float) -> None:
        """Something was granted, moved or freed."""
        self._moved_s = max(self._moved_s, at_s)

    def announce(self, reason: str, at_s: float) -> None:
        """Say once per change what the run waits for; numbers that count on are no change."""
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

    def check_server(self, at_s: float, *, in_flight: int, left: int) -> None:
        """Call while requests may be sent.

        Raises:
            ServerGone: requests are in flight, and neither an answer nor a part came for too long.
        """
        silent_s = at_s - self._heard_s
        if in_flight and silent_s > self._settings.server_timeout_s:
            reason = f"{in_flight} requests in flight, and neither an answer nor a part file"
            raise ServerGone(url=self._settings.server, seconds=silent_s, reason=reason, left=left)

    def check_storage(self, at_s: float, *, mover: MoverState | None, reason: str, waiting: bool, left: int) -> None:
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
        if stuck_s <= self._settings.mover_timeout_s:
            return
        scratch = self._settings.scratch
        if mover is None or not mover.alive(now_s()):
            raise MoverSilent(
                reason="the mover has been silent", seconds=stuck_s, left=left, scratch=scratch, dst=self._dst
            )
        if mover.state != "moving":
            reason = f"the mover holds: {mover.reason}"
        raise StorageStuck(seconds=stuck_s, reason=reason or "the mover stores nothing", left=left, scratch=scratch)
