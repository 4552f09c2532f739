"""One server of a run: its connections, what is in flight there, and whether requests may be sent to it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import anyio

from hs_client._http import ServerClient, api_key
from hs_client.admission import RecordCost
from hs_client.attempt import Attempt
from hs_client.breaker import Breaker
from hs_client.gate import ServerGate
from hs_client.preflight import ServerFacts
from hs_client.probe import ServerProbe
from hs_client.settings import RunSettings
from hs_client.storage import Storage
from hs_client.watch import ServerWatch
from hs_client.work import Item
from hs_formats.names import Rid

__all__ = ["Backend"]


class Backend:
    """A server, and the scratch that it writes to.

    Args:
        settings: of the run.
        server: as preflight found it.
        storage: its scratch.
        tls: shared by all connections.
        left: how many samples are pending, for messages.
        changed: called when a request may be sent that could not be sent before.
    """

    def __init__(
        self,
        settings: RunSettings,
        server: ServerFacts,
        storage: Storage,
        *,
        tls: ssl.SSLContext,
        left: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        marker = server.marker
        self.server = server
        self.storage = storage
        self.cost = RecordCost.of(
            writers=marker.writers,
            ranks=len(marker.expected_ranks),
            bytes_per_token=marker.bytes_per_token,
            chunk_tokens=marker.chunk_size,
        )
        self.probe = ServerProbe(server, storage.place.control)
        self.gate = ServerGate(
            server.url, timeout_s=settings.server_timeout_s, probe=self.probe.probe, left=left, opened=changed
        )
        self.watch = ServerWatch(server.url, timeout_s=settings.server_timeout_s, at_s=anyio.current_time())
        self.breaker = Breaker()
        self.tokens = 0
        self.in_flight = 0
        self.answering = 0
        self.answer_breaker = Breaker()
        self.dropped = False
        self._settings = settings
        self._tls = tls
        self._changed = changed
        self._clients: list[ServerClient] = []
        self._idle: list[ServerClient] = []
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def ready(self) -> bool:
        """A request may be sent now."""
        return not self.dropped and self.gate.is_open and self.in_flight < self._settings.concurrency

    @property
    def longest_prompt(self) -> int:
        """In tokens."""
        context = self.server.marker.context_length - 1
        return min(context, self.server.longest_prompt) if self.server.longest_prompt > 0 else context

    def attempt(self, run: str, item: Item) -> Attempt:
        """The next attempt at `item`, registered; no await may lie between its grant and this."""
        rid = str(Rid(run, item.row, item.attempt))
        item.attempt += 1
        marker = self.server.marker
        attempt = Attempt(rid, item.sample, item.tries, self.cost, marker.writers, marker.expected_ranks)
        if not self.in_flight:
            self.watch.heard(anyio.current_time())
        self.in_flight += 1
        self.tokens += item.sample.n
        self.gate.enter()
        self.storage.correlator.add(attempt)
        return attempt

    def spoke(self, at_s: float) -> None:
        """It has answered, whatever it said."""
        self.gate.ok()
        self.watch.heard(at_s)

    def ended(self, attempt: Attempt, client: ServerClient, scope: anyio.CancelScope) -> None:
        """The request of `attempt` is over, one way or another."""
        self._scopes.discard(scope)
        self._idle.append(client)
        self.in_flight -= 1
        self.tokens -= attempt.sample.n
        self.gate.leave()
        self._changed()

    def answers_more(self, limit: int) -> bool:
        """A request for an answer may be sent now, where no more than `limit` are to be in flight."""
        return not self.dropped and self.gate.is_open and self.answering < limit

    def begin_answer(self) -> ServerClient:
        """A request for an answer is about to be sent, by the connection that is returned."""
        self.answering += 1
        self.gate.enter()
        return self.connection()

    def end_answer(self, client: ServerClient, scope: anyio.CancelScope) -> None:
        """It is over, one way or another."""
        self._scopes.discard(scope)
        self._idle.append(client)
        self.answering -= 1
        self.gate.leave()
        self._changed()

    def connection(self) -> ServerClient:
        """One that no other request uses; the last one that was used, whose socket is the likeliest to be open."""
        if self._idle:
            return self._idle.pop()
        client = ServerClient(
            self.server.url, tls=self._tls, read_timeout_s=self._settings.request_timeout_s, key=api_key()
        )
        self._clients.append(client)
        return client

    def watch_over(self, scope: anyio.CancelScope) -> None:
        """Cancel this request's scope when the server is dropped, or at once where it was."""
        self._scopes.add(scope)
        if self.dropped:
            scope.cancel()

    def drop(self) -> None:
        """Send nothing more there, and wait for no answer."""
        self.dropped = True
        for scope in list(self._scopes):
            scope.cancel()
        self._changed()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()
