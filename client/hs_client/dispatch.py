"""Which server takes a sample, and when: least outstanding tokens first, and only when its record surely fits."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

import anyio

from hs_client.admission import Decision
from hs_client.attempt import Verdict
from hs_client.backend import Backend
from hs_client.limiter import Limiter, Party
from hs_client.storage import Storage
from hs_client.tally import Tally
from hs_client.work import Item, WorkQueue

__all__ = ["Dispatcher"]

_FIRST_WAIT_S = 0.02
_MAX_WAIT_S = 0.5
_LOOK_AGAIN_S = 0.5
_LIMIT_PATIENCE_S = 30.0
"""How long records that the limit has no room for just now wait for a higher one, once nothing else is to be done, or
too many wait to keep them all in memory. In vain once is enough: the others then fail at once."""


class Dispatcher:
    """Places samples one after the other, so that a large one is not overtaken for ever.

    Args:
        backends: the servers.
        queue: takes back what is put off.
        limiter: told for whom is waited.
        tally: told for how long.
        give_up: what to do with a sample that no server can take.
        announce: says what is waited for.
        admission: False sends without asking for credit; for a test.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        queue: WorkQueue,
        *,
        limiter: Limiter,
        tally: Tally,
        give_up: Callable[[Item, Verdict], Awaitable[None]],
        announce: Callable[[str], None],
        admission: bool,
    ) -> None:
        self._backends = backends
        self._queue = queue
        self._limiter = limiter
        self._tally = tally
        self._give_up = give_up
        self._announce = announce
        self._admission = admission
        self._news = anyio.Event()
        self._patient_until_s = 0.0

    def changed(self) -> None:
        """A server has become ready, or was dropped."""
        self._news.set()

    async def place(self, item: Item) -> Backend | None:
        """The server to send `item` to, its credit granted; None when it is not to be sent.

        The attempt must be registered before the caller's next await.
        """
        pause_s = _FIRST_WAIT_S
        while not self._queue.closed and not item.settled:
            self._news = anyio.Event()
            usable = [backend for backend in self._backends if not backend.dropped]
            taking = [backend for backend in usable if item.sample.n <= backend.longest_prompt]
            if usable and not taking:
                # Not a fault of the row: the same model with more room for its KV cache takes it.
                longest = max(backend.longest_prompt for backend in usable)
                reason = f"{item.sample.n} tokens, and this server takes {longest} at most"
                await self._give_up(item, Verdict("too long", reason))
                return None
            ready = sorted((backend for backend in taking if backend.ready), key=lambda backend: backend.tokens)
            if not ready:
                await self._wait_for_a_server(taking)
                continue
            self._wait_for("")
            if not self._admission:
                return ready[0]
            found = await self._ask(ready, item.sample.n)
            if isinstance(found, Backend):
                if item.too_large:
                    self._patient_until_s = 0.0  # the limit has risen
                return found
            if not found:
                continue
            decision = next((each for each in found.values() if each.verdict == "wait"), None)
            storages = {id(backend.storage) for backend in taking}
            if decision is None and len(found) == len(storages) and not await self._is_patient(item, found):
                return None
            if decision is None:
                decision = next(iter(found.values()))
            await self._wait_for_room(found, decision.reason, pause_s)
            pause_s = min(_MAX_WAIT_S, 1.5 * pause_s)
        self._stop_waiting()
        return None

    async def _ask(self, ready: Sequence[Backend], n: int) -> Backend | dict[Storage, Decision]:
        """The first server whose scratch grants the record, else what each scratch said."""
        said: dict[Storage, Decision] = {}
        for backend in ready:
            storage = backend.storage
            if storage in said:
                continue
            decision = await storage.keeper.take(backend.cost.record(n))
            if backend.dropped:
                continue
            if decision.verdict == "grant":
                storage.granted(anyio.current_time())
                self._stop_waiting()
                return backend
            said[storage] = decision
        return said

    async def _is_patient(self, item: Item, said: dict[Storage, Decision]) -> bool:
        """No limit takes the record now: put it off, wait a little at the end of the run, or give it up."""
        later = next((each for each in said.values() if each.verdict == "later"), None)
        at_s = anyio.current_time()
        if later is not None:
            item.too_large = True
            if not item.put_off and self._queue.put_off(item):
                return False
            self._patient_until_s = self._patient_until_s or at_s + _LIMIT_PATIENCE_S
            if at_s < self._patient_until_s:
                return True
        decision = later or next(iter(said.values()))
        await self._give_up(item, Verdict("too large", decision.reason))
        return False

    async def _wait_for_a_server(self, taking: Sequence[Backend]) -> None:
        self._wait_for("server")
        paused = [backend for backend in taking if not backend.dropped]
        started_s = anyio.current_time()
        if paused and all(backend.gate.paused for backend in paused):
            reason = f"the server ({paused[0].gate.reason})"
            self._announce(reason)
        else:
            reason = ""
        with anyio.move_on_after(_LOOK_AGAIN_S):
            await self._news.wait()
        if reason:
            self._tally.waited("the server", anyio.current_time() - started_s)

    async def _wait_for_room(self, said: dict[Storage, Decision], reason: str, pause_s: float) -> None:
        storage = next(iter(said))
        self._wait_for(storage.party(reason))
        self._announce(reason)
        started_s = anyio.current_time()
        await anyio.sleep(max(pause_s, *(each.correlator.look_s for each in said)))
        for each in said:
            await each.correlator.tick()
        self._tally.waited(reason, anyio.current_time() - started_s)

    def _wait_for(self, party: Party) -> None:
        self._limiter.wait_for(party, time.monotonic())

    def _stop_waiting(self) -> None:
        for backend in self._backends:
            backend.storage.keeper.stop_waiting()
