"""All servers of a run: one that is lost is given up, and the run goes on with the others as long as there are any."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from hs_client.attempt import Verdict
from hs_client.backend import Backend
from hs_client.breaker import Breaker
from hs_client.errors import NothingStored, NothingWorks
from hs_formats.errors import HsError

__all__ = ["Servers"]

_BEATS_TO_SERVER_CHECK = 5


class Servers:
    """The servers, and which of them are still used.

    Args:
        backends: all of them.
        left: how many samples are pending, for messages.
        say: prints a line for the user.
    """

    def __init__(self, backends: Sequence[Backend], *, left: Callable[[], int], say: Callable[[str], None]) -> None:
        self.backends = backends
        self._left = left
        self._say = say
        self._beats = 0

    @property
    def usable(self) -> list[Backend]:
        """Those that were not given up."""
        return [backend for backend in self.backends if not backend.dropped]

    @property
    def waiting(self) -> str:
        """Why no request is sent to any of them; empty while one takes them."""
        usable = self.usable
        if usable and all(backend.gate.paused for backend in usable):
            return f"the server ({usable[0].gate.reason})"
        return ""

    def drop(self, backend: Backend, error: HsError) -> None:
        """Go on without this server: its rows are sent to the others.

        Raises:
            HsError: `error`, when it was the last one.
        """
        if backend.dropped:
            return
        if self.usable == [backend]:
            raise error
        backend.drop()
        reason = str(error).partition(";")[0]
        self._say(f"warning: {backend.server.url} is given up, its rows go to the other servers: {reason}")

    def failing(self, backend: Backend, verdict: Verdict, breaker: Breaker | None = None) -> None:
        """An attempt has failed. When nothing works any more the fault is not the samples': they stay pending.

        `breaker` counts attempts of its kind; the server's own where there is none.

        Raises:
            NothingWorks, NothingStored: on the last server.
        """
        what = (breaker or backend.breaker).failed()
        if what:
            left, url = self._left(), backend.server.url
            if verdict.kind == "quarantined":  # the server answers; what it captured is bad, or the mover finds it so
                self.drop(backend, NothingStored(what=what, reason=verdict.reason, left=left))
            else:
                self.drop(backend, NothingWorks(what=what, reason=verdict.reason, left=left, url=url))

    async def follow(self, backend: Backend) -> None:
        """Pause and give up one server; for a task.

        Raises:
            HsError: the last server is lost.
        """
        try:
            await backend.gate.serve()
        except HsError as error:
            self.drop(backend, error)

    async def beat(self, *, excuse: str) -> None:
        """Called at every heartbeat; `excuse`: why no server can have answered, if there is a reason.

        Raises:
            HsError: the last server is lost, or came back with other settings.
        """
        ask = self._beats % _BEATS_TO_SERVER_CHECK == 0
        self._beats += 1
        for backend in self.usable:
            try:
                await self._check(backend, excuse=excuse, ask=ask)
            except HsError as error:
                self.drop(backend, error)

    async def _check(self, backend: Backend, *, excuse: str, ask: bool) -> None:
        at_s = anyio.current_time()
        backend.watch.heard(at_s if excuse else backend.storage.correlator.last_part_s)
        if not backend.gate.probing:
            backend.watch.check(at_s, in_flight=backend.in_flight, left=self._left())
        # A server can be replaced while nothing is in flight, so that no request notices.
        if ask:
            await backend.probe.armed()
