"""Whether requests go to a server now: backs off when it refuses or vanishes, and gives up when it stays away."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio

from hs_client._http import RequestError
from hs_client.errors import ServerGone

__all__ = ["ServerGate"]

_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0
_JITTER = 0.5


class ServerGate:
    """Open while the server answers. `serve` must run as a task.

    After a pause one request goes first: the others follow when it was answered.

    Args:
        url: for messages.
        timeout_s: how long no request may succeed.
        probe: asks the server whether it is there and still the one we know; raises RequestError when it is not.
        left: how many samples are pending, for the message.
        opened: called whenever requests may be sent again.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        probe: Callable[[], Awaitable[None]],
        left: Callable[[], int],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._probe = probe
        self._left = left
        self._opened = opened
        self._is_open = True
        self._on_trial = False
        self._trying = False
        self._fail = anyio.Event()
        self._since_s: float | None = None
        self._backoff_s = _FIRST_BACKOFF_S
        self.reason = ""

    @property
    def is_open(self) -> bool:
        """A request may be sent."""
        return self._is_open and not self._trying

    @property
    def paused(self) -> bool:
        """The server was found busy or away, and has not answered a request since."""
        return not self._is_open or self._on_trial

    @property
    def probing(self) -> bool:
        """No request is sent at all: the server is asked whether it is back."""
        return not self._is_open

    def enter(self) -> None:
        """A request is about to be sent."""
        self._trying = self._on_trial

    def leave(self) -> None:
        """A request has ended without saying anything about the server."""
        if self._trying:
            self._trying = False
            self._opened()

    def ok(self) -> None:
        """A request was answered. One that was sent before the gate closed says nothing about the server now."""
        if not self._is_open:
            return
        self._since_s = None
        self._backoff_s = _FIRST_BACKOFF_S
        self.reason = ""
        if self._on_trial:
            self._on_trial = self._trying = False
            self._opened()

    def failed(self, reason: str) -> None:
        """A request found the server busy or away; all pause. Failures of one pause count once."""
        if not self._is_open:
            return
        self.reason = reason
        if self._since_s is None:
            self._since_s = anyio.current_time()
        self._is_open = False
        self._on_trial = True
        self._trying = False
        self._fail.set()

    async def serve(self) -> None:
        """Open the gate again after each failure.

        Raises:
            ServerGone: no request succeeded for too long.
        """
        while True:
            await self._fail.wait()
            self._fail = anyio.Event()
            while True:
                # Several clients of one server must not come back all at once.
                await anyio.sleep(self._backoff_s * (1 - _JITTER * random.random()))  # noqa: S311
                self._backoff_s = min(_MAX_BACKOFF_S, 2 * self._backoff_s)
                self._check_time()
                try:
                    await self._probe()
                except RequestError as error:
                    self.reason = str(error)
                else:
                    break
            self._is_open = True
            self._opened()

    def _check_time(self) -> None:
        if self._since_s is None:
            return
        away_s = anyio.current_time() - self._since_s
        if away_s > self._timeout_s:
            raise ServerGone(url=self._url, seconds=away_s, reason=self.reason, left=self._left())
