"""How samples end: attempts that have an outcome go to the ledger in groups, failed ones are sent again or given up."""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from hs_client.attempt import Attempt, Verdict
from hs_client.backend import Backend
from hs_client.ledger_log import LedgerLog
from hs_client.outcomes import Outcome, ledger_lines
from hs_client.prepare import Ask, Prepared
from hs_client.row_error import OTHER_CONTENT
from hs_client.tally import Tally
from hs_client.work import Item, WorkQueue
from hs_formats.hashing import content_number
from hs_formats.ledger import Failed, Rejected
from hs_formats.names import MAX_ATTEMPT

__all__ = ["Endings", "retry_pause_s"]

_FIRST_RETRY_S = 0.5
_MAX_RETRY_S = 30.0


def retry_pause_s(tries: int) -> float:
    """Seconds before the next attempt after `tries` failed ones: doubling, and never the same for two."""
    return min(_MAX_RETRY_S, _FIRST_RETRY_S * 2.0**tries) * random.uniform(0.5, 1.0)  # noqa: S311


class Endings:
    """Knows every attempt whose outcome is open; `serve` must run as a task.

    Args:
        queue: where samples come from and go to.
        ledger: every outcome is in it before it counts.
        tally: counts.
        max_retries: attempts after the first that a sample gets when its attempts fail for a reason of their own.
        failing: told of every attempt that failed so.
    """

    def __init__(
        self,
        queue: WorkQueue,
        ledger: LedgerLog,
        tally: Tally,
        *,
        max_retries: int,
        failing: Callable[[Backend, Verdict], None],
    ) -> None:
        self._queue = queue
        self._ledger = ledger
        self._tally = tally
        self._max_retries = max_retries
        self._failing = failing
        self._flights: dict[str, tuple[Item, Backend]] = {}
        self._outcomes: list[Outcome] = []
        self._ready = anyio.Event()

    @property
    def unwritten(self) -> int:
        """Outcomes that are not in the ledger yet."""
        return len(self._outcomes)

    def begin(self, attempt: Attempt, item: Item, backend: Backend) -> None:
        """An attempt is about to be sent."""
        self._flights[attempt.rid] = (item, backend)

    def forget(self, attempt: Attempt) -> None:
        """It was not accepted: it will have no outcome."""
        self._flights.pop(attempt.rid, None)

    def settle(self, attempt: Attempt, verdict: Verdict) -> None:
        """An attempt has ended; what follows is done by `serve`."""
        flight = self._flights.pop(attempt.rid, None)
        if flight is not None:
            self._outcomes.append(Outcome(*flight, attempt, verdict))
            self._ready.set()

    async def serve(self) -> None:
        """Write outcomes, for ever.

        Raises:
            HsError: nothing works any more, or the ledger cannot be written.
        """
        while True:
            await self._ready.wait()
            self._ready = anyio.Event()
            batch = list(self._outcomes)
            await self._ledger.commit(*ledger_lines(batch))
            for outcome in batch:
                await self._count(outcome)
            del self._outcomes[: len(batch)]

    async def _count(self, outcome: Outcome) -> None:
        item, attempt, verdict = outcome.item, outcome.attempt, outcome.verdict
        if item.settled:
            return
        if verdict.done:
            outcome.backend.breaker.succeeded()
            self._tally.finish(item.sample, attempt.lines.values(), adopted=attempt.answer is None)
            self._queue.settle(item)
            return
        self._failing(outcome.backend, verdict)
        if item.tries < self._max_retries and item.attempt <= MAX_ATTEMPT:
            item.tries += 1
            await self.again(item, verdict, pause_s=retry_pause_s(item.tries))
        else:
            self._fail(item, verdict)

    async def again(self, item: Item, verdict: Verdict, *, pause_s: float = 0.0) -> None:
        """Send the sample once more under a new request id, if there is one left."""
        if item.settled or self._queue.closed:
            return
        if item.attempt > MAX_ATTEMPT:
            await self.give_up(item, verdict)
            return
        self._tally.retried += 1
        self._queue.again(item, pause_s=pause_s)

    async def give_up(self, item: Item, verdict: Verdict, rid: str = "") -> None:
        """The sample has failed for this run; the next one tries again."""
        if item.settled:
            return
        await self.note_failed(item, verdict, rid)
        self._fail(item, verdict)

    async def done_elsewhere(self, sample: Prepared | Ask, content: int) -> None:
        """Another client has got the sample done meanwhile, as the row with this `content`; 0 where nobody knows it."""
        if content and sample.content and content != content_number(sample.content):
            reason = f"id {sample.sample_id!r} is done already, by another client, {OTHER_CONTENT}"
            await self._ledger.commit(Rejected(sample_id="", row=sample.where, reason=reason))
            self._tally.reject(sample.where, reason, planned=False, number=sample.number)
        else:
            self._tally.find_elsewhere(sample.number)

    async def note_failed(self, item: Item, verdict: Verdict, rid: str) -> None:
        """Write that the attempt `rid` has failed."""
        line = Failed(sample_id=item.sample.sample_id, rid=rid, kind=verdict.kind, reason=verdict.reason)
        await self._ledger.commit(line)

    def _fail(self, item: Item, verdict: Verdict) -> None:
        self._tally.fail(item.sample, verdict)
        self._queue.settle(item)
