"""One request from its intent to its answer, or to what follows when there is none."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from hs_client._http import Busy, Denied, Lost, Refused, RequestError, Unreachable
from hs_client.attempt import Attempt, Verdict
from hs_client.backend import Backend
from hs_client.endings import Endings
from hs_client.errors import ServerDenies
from hs_client.ledger_log import LedgerLog
from hs_client.servers import Servers
from hs_client.tally import Tally
from hs_client.work import Item
from hs_formats.ledger import Intent

__all__ = ["Sender"]

_MAX_LOST = 10


class Sender:
    """Sends attempts.

    Args:
        ledger: has the intent before the request is sent.
        tally: counts requests and the time that they take.
        endings: what becomes of samples.
        servers: told of a server that wants another key.
        announce: says what is waited for.
    """

    def __init__(
        self, ledger: LedgerLog, tally: Tally, endings: Endings, servers: Servers, *, announce: Callable[[str], None]
    ) -> None:
        self._ledger = ledger
        self._tally = tally
        self._endings = endings
        self._servers = servers
        self._announce = announce

    async def send(self, backend: Backend, item: Item, attempt: Attempt) -> None:
        """Send a registered attempt, and see to what comes of it but for the record.

        Raises:
            HsError: no request will be answered any more.
        """
        await self._ledger.commit(_intent(item, attempt))
        self._tally.sent += 1
        started_s = anyio.current_time()
        client = backend.connection()
        error: RequestError = Lost("the server is given up")
        with anyio.CancelScope() as scope:
            backend.watch_over(scope)
            try:
                answer = await client.generate(attempt.rid, attempt.sample.ids)
            except RequestError as caught:
                error = caught
            else:
                now_s = anyio.current_time()
                self._tally.answer(now_s - started_s)
                backend.spoke(now_s)
                backend.storage.correlator.answered(attempt, answer)
                return
            finally:
                backend.ended(attempt, client, scope)
        await self._not_answered(backend, item, attempt, error)

    async def _not_answered(self, backend: Backend, item: Item, attempt: Attempt, error: RequestError) -> None:
        if isinstance(error, Lost):
            backend.storage.correlator.lost(attempt)
            self._pause(backend, error)
            item.lost += 1
            verdict = Verdict("lost", f"no answer: {error}")
            if item.lost > _MAX_LOST:
                await self._endings.give_up(item, verdict, attempt.rid)
            else:
                await self._endings.again(item, verdict)
            return
        backend.storage.correlator.drop(attempt)
        self._endings.forget(attempt)
        if isinstance(error, Refused):
            backend.spoke(anyio.current_time())
            verdict = Verdict("refused", f"the server refuses it: {error}")
            await self._endings.give_up(item, verdict, attempt.rid)
            self._servers.failing(backend, verdict)
            return
        if isinstance(error, Busy | Unreachable):
            self._pause(backend, error)
        verdict = Verdict("not taken", str(error))
        await self._endings.note_failed(item, verdict, attempt.rid)
        await self._endings.again(item, verdict)
        if isinstance(error, Denied):
            self._servers.drop(backend, ServerDenies(url=backend.server.url, reason=error))

    def _pause(self, backend: Backend, error: RequestError) -> None:
        backend.gate.failed(str(error))
        if not backend.dropped:
            self._announce(f"the server: {error}")


def _intent(item: Item, attempt: Attempt) -> Intent:
    sample = item.sample
    return Intent(
        sample_id=sample.sample_id,
        rid=attempt.rid,
        n=sample.n,
        ids_xxh3=sample.ids_hash,
        mask=sample.spans,
        row=sample.where,
        content=sample.content,
        cut_from=sample.cut_from,
        answers=list(sample.answers),
    )
