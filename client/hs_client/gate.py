"""Whether requests go to the server now: backs off when it refuses or vanishes, gives up when it stays away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from hs_client._http import RequestError
from hs_client.errors import ServerGone

__all__ = ["ServerGate"]

_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 8.0


class ServerGate:
    """Open while the server answers. `serve` must run as a task.

    Args:
        url: for messages.
        timeout_s: how long no request may succeed.
        probe: asks the server whether it is there and still the one we know; raises RequestError when it is not.
        left: how many samples are pending, for the message.
    """

    def __init__(
        self, url: str, *, timeout_s: float, probe: Callable[[], Awaitable[None]], left: Callable[[], int]
    ) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._probe = probe
        self._left = left
        self._open = anyio.Event()
        self._open.set()
        self._fail = anyio.Event()
        self._since_s: float | None = None
        self._backoff_s = _FIRST_BACKOFF_S
        self.reason = ""
        self.closed_s = 0.0

    @property
    def is_open(self) -> bool:
        """Requests may be sent."""
        return self._open.is_set()

    async def wait(self) -> None:
        """Return when requests may be sent."""
        await self._open.wait()

    def ok(self) -> None:
        """A request was answered. One that was sent before the gate closed says nothing about the server now."""
        if not self.is_open:
            return
        self._since_s = None
        self._backoff_s = _FIRST_BACKOFF_S
        self.reason = ""

    def failed(self, reason: str) -> None:
        """A request found the server busy or away; all workers pause. Failures of one pause count once."""
        if not self.is_open:
            return
        self.reason = reason
        if self._since_s is None:
            self._since_s = anyio.current_time()
        self._open = anyio.Event()
        self._fail.set()

    async def serve(self) -> None:
        """Open the gate again after each failure.

        Raises:
            ServerGone: no request succeeded for too long.
        """
        while True:
            await self._fail.wait()
            self._fail = anyio.Event()
            started_s = anyio.current_time()
            while True:
                await anyio.sleep(self._backoff_s)
                self._backoff_s = min(_MAX_BACKOFF_S, 2 * self._backoff_s)
                self._check_time()
                try:
                    await self._probe()
                except RequestError as error:
                    self.reason = str(error)
                else:
                    break
            self.closed_s += anyio.current_time() - started_s
            self._open.set()

    def _check_time(self) -> None:
        if self._since_s is None:
            return
        away_s = anyio.current_time() - self._since_s
        if away_s > self._timeout_s:
            raise ServerGone(url=self._url, seconds=away_s, reason=self.reason, left=self._left())
