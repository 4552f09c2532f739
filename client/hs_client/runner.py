"""One run: tokenised samples go to the servers, their records are awaited, the ledger is kept.

The tasks and what they wait for: a feeder (tokenizer thread); the dispatcher, which places one sample after the other;
a short task for each request in flight; for each scratch the correlator; the ledger; the settler, which writes outcomes
in groups; for each server the gate that pauses it; the heartbeat.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence

import anyio
import anyio.abc
import anyio.to_thread

from hs_client._http import shared_tls
from hs_client.adopt import Adopted
from hs_client.attempt import Attempt, Verdict
from hs_client.backend import Backend
from hs_client.dispatch import Dispatcher
from hs_client.endings import Endings
from hs_client.errors import DestinationBroken, ScratchBroken
from hs_client.generate.answers import Answers
from hs_client.generate.generator import Generator
from hs_client.ledger_log import LedgerLog
from hs_client.limiter import Limiter, Party
from hs_client.meanwhile import Meanwhile
from hs_client.plan import Judged
from hs_client.preflight import Place, ServerFacts
from hs_client.prepare import Ask, Prepared, Source
from hs_client.progress import Snapshot
from hs_client.rows import digest
from hs_client.sending import Sender
from hs_client.servers import Servers
from hs_client.settings import RunSettings
from hs_client.storage import Storage
from hs_client.supply import Supply
from hs_client.tally import Tally
from hs_client.watch import Announcer
from hs_client.work import Item, WorkQueue
from hs_formats.control import HEARTBEAT_S
from hs_formats.errors import HsError
from hs_formats.ledger import Rejected

__all__ = ["Runner"]

_DRAIN_S = 30.0


class Runner:
    """Everything that happens between preflight and summary.

    Args:
        settings: of the run.
        run: its id.
        sites: every server with its scratch and the dataset; servers of one scratch have the same place.
        source: the samples.
        supply: gives their rows.
        adoptable: complete records of earlier runs that no ledger calls done, by the digests of their samples' ids: one
            is adopted when its row comes.
        ledger: of this run, with its first line written.
        tally: counts; the caller shows them.
        meanwhile: what other clients get done.
        say: prints a line for the user.
        status: the run as it stands, in a line, for others to read in scratch.
        answers: those of earlier runs and the book of this run's; None where none are generated.

    Raises:
        OSError: a scratch has no room for the client's record.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        run: str,
        sites: Sequence[tuple[Place, ServerFacts]],
        source: Source,
        supply: Supply,
        adoptable: dict[bytes, Adopted],
        ledger: LedgerLog,
        tally: Tally,
        meanwhile: Meanwhile,
        say: Callable[[str], None],
        status: Callable[[], str],
        answers: tuple[Answers, LedgerLog] | None = None,
    ) -> None:
        at_s = anyio.current_time()
        self._settings = settings
        self._run = run
        self._source = source
        self._supply = supply
        self._adoptable = adoptable
        self._ledger = ledger
        self._tally = tally
        self._meanwhile = meanwhile
        self._announcer = Announcer(say, at_s=at_s)
        self._queue = WorkQueue(capacity=max(64, 2 * settings.concurrency))
        self.limiter = Limiter(time.monotonic())
        storages = {
            place.control.scratch: Storage(
                settings,
                place,
                run=run,
                settle=self._settle,
                status=status,
            )
            for place, _ in sites
        }
        self.storages = list(storages.values())
        tls = shared_tls()
        backends = [
            Backend(
                settings,
                server,
                storages[place.control.scratch],
                tls=tls,
                left=lambda: self.left,
                changed=self._changed,
            )
            for place, server in sites
        ]
        servers = Servers(backends, left=lambda: self.left, say=say)
        endings = Endings(self._queue, ledger, tally, max_retries=settings.max_retries, failing=servers.failing)
        dispatcher = Dispatcher(
            backends,
            self._queue,
            limiter=self.limiter,
            tally=tally,
            give_up=endings.give_up,
            announce=self._announce,
            admission=settings.admission,
        )
        self._servers = servers
        self._endings = endings
        self._dispatcher = dispatcher
        self._sender = Sender(ledger, tally, endings, servers, announce=self._announce)
        self._rows = 0
        self._starving = False
        self._in_hand: deque[Prepared | Ask] = deque()
        self._tokenizing = anyio.Lock()
        self._looking = anyio.Lock()
        self._generator: Generator | None = None
        if settings.generate is not None and answers is not None:
            self._generator = Generator(
                settings.generate,
                run=run,
                source=source,
                tokenizing=self._tokenizing,
                servers=servers,
                config_hash=sites[0][1].marker.config_hash,
                answers=answers[0],
                log=answers[1],
                ledger=ledger,
                tally=tally,
                queue=self._queue,
                next_row=self._next_row,
                max_retries=settings.max_retries,
                train_last=settings.chat.train_on == "last",
                announce=self._announce,
            )
            self._answer_log = answers[1]
        self.interrupted = False
        self._error: HsError | None = None
        self._scope = anyio.CancelScope()

    @property
    def left(self) -> int:
        """Samples that are neither done, failed nor rejected."""
        return self._tally.left

    @property
    def waiting(self) -> str:
        """What the run waits for just now; empty while requests flow."""
        stores = (storage.waiting for storage in self.storages)
        return self._servers.waiting or next(filter(None, stores), "") or self._ledger.trouble or self._answers_trouble

    @property
    def _answers_trouble(self) -> str:
        return "" if self._generator is None else self._generator.trouble

    @property
    def _answering(self) -> bool:
        return self._generator is not None and self._generator.unfinished

    @property
    def generating(self) -> int:
        """Requests for answers that have none yet."""
        return 0 if self._generator is None else self._generator.in_flight

    @property
    def idle(self) -> bool:
        """More could be sent than there is."""
        if self._generator is not None and not self._generator.asks.starving:
            return False
        return self._starving and not self._queue.has_ready and any(each.ready for each in self._servers.usable)

    def unsent(self) -> Counter[int]:
        """Row numbers of samples that wait to be sent for the first time, with how many samples each."""
        found = Counter(self._queue.unsent())
        found.update(sample.number for sample in self._in_hand)
        if self._generator is not None:
            found.update(ask.number for ask in self._generator.asks)
        return found

    def withdraw(self, numbers: Collection[int]) -> None:
        """Forget all unsent samples of these rows."""
        self._in_hand = deque(sample for sample in self._in_hand if sample.number not in numbers)
        self._queue.withdraw(numbers)
        if self._generator is not None:
            self._generator.asks.withdraw(numbers)

    @property
    def to_store(self) -> int:
        """Records that wait for a mover."""
        return sum(storage.to_store for storage in self.storages)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return sum(storage.in_flight for storage in self.storages)

    def snapshot(self) -> Snapshot:
        """The run as it stands; may be asked for after its end, when there is no event loop."""
        movers = [storage.mover for storage in self.storages if storage.mover is not None]
        return Snapshot(
            in_flight=self.in_flight,
            generating=self.generating,
            to_capture=self._queue.answered,
            to_store=self.to_store,
            waiting=self.waiting,
            limiting=self.limiter.limiting(time.monotonic()),
            used_bytes=sum(mover.used_bytes for mover in movers),
            limit_bytes=sum(mover.limit_bytes for mover in movers),
            in_bytes_per_s=sum(mover.in_bytes_per_s for mover in movers),
            out_bytes_per_s=sum(mover.out_bytes_per_s for mover in movers),
        )

    async def run(self) -> None:
        """Do it all.

        Raises:
            HsError: the run could not be finished; what is left stays pending.
        """
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for task in (self._ledger.serve, self._heartbeat, self._endings.serve, self._feeder, self._follow):
                        group.start_soon(self._guard, task)
                    group.start_soon(self._guard, self._supply.serve, self)
                    for storage in self.storages:
                        group.start_soon(self._guard, storage.correlator.serve)
                    for backend in self._servers.backends:
                        group.start_soon(self._guard, self._servers.follow, backend)
                    if self._generator is not None:
                        group.start_soon(self._guard, self._answer_log.serve)
                        for _ in range(self._generator.workers):
                            group.start_soon(self._guard, self._generator.work)
                    group.start_soon(self._guard, self._dispatch, group)
                    await self._queue.wait_finished()
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for backend in self._servers.backends:
                    await backend.close()
                for storage in self.storages:
                    await storage.close()
        if self._error is not None:
            raise self._error

    async def _guard(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await task(*arguments)
        except HsError as error:
            self._error = self._error or error
            self._scope.cancel()
        except OSError as error:
            path, reason = error.filename or self._settings.servers[0].scratch, error.strerror or error
            self._error = self._error or ScratchBroken(path=path, reason=reason, left=self.left)
            self._scope.cancel()

    async def interrupt(self) -> None:
        """Send nothing more, give what is in flight `_DRAIN_S` to be stored, then end `run`."""
        self.interrupted = True
        self._queue.close()
        with anyio.move_on_after(_DRAIN_S):
            while self._answering or self._endings.unwritten or any(storage.unfinished for storage in self.storages):
                for storage in self.storages:
                    await storage.correlator.tick()
                await anyio.sleep(0.05)
        self.stop()

    def stop(self) -> None:
        """End `run` now."""
        self.interrupted = True
        self._scope.cancel()

    async def _feeder(self) -> None:
        while not self._queue.closed:
            self._queue.pause_input(paused=True)
            rows = await self._supply.next(self)
            self._queue.pause_input(paused=False)
            if rows is None:
                self._source.end()
                break
            self._source.begin(rows)
            while not self._queue.closed:
                async with self._tokenizing:
                    batch = await anyio.to_thread.run_sync(self._source.next_batch)
                if batch is None:
                    self._supply.through()
                    break
                self._supply.took(*batch)
                await self._reject(batch[1])
                await self._send_or_ask(await self._not_done(batch[0]))
        if self._generator is not None:
            await self._generator.finish()
        self._queue.end_input()

    async def _reject(self, rejected: Sequence[Judged]) -> None:
        """Note what a row that was planned to be sent says about itself, and count all."""
        lines = [_rejected(judged) for judged in rejected if not judged.known]
        if lines:
            await self._ledger.commit(*lines)
        for judged in rejected:
            self._tally.reject(judged.where, judged.reason, planned=judged.planned, number=judged.number)

    async def _not_done(self, samples: Sequence[Prepared | Ask]) -> list[Prepared | Ask]:
        """Those of which there is no record yet; the others end."""
        kept: list[Prepared | Ask] = []
        adopted: list[tuple[Prepared | Ask, Adopted]] = []
        for sample in samples:
            content = self._meanwhile.content(sample.sample_id)
            found = self._adoptable.pop(digest(sample.sample_id), None) if self._adoptable else None
            if content is not None:
                await self._endings.done_elsewhere(sample, content)
            elif found is not None:
                adopted.append((sample, found))
            else:
                kept.append(sample)
        if adopted:
            await self._ledger.commit(*(found.done for _, found in adopted))
        for sample, found in adopted:
            self._tally.adopt(found.intent.n, found.intent.mask, found.lines, sample.number)
        return kept

    async def _send_or_ask(self, samples: Sequence[Prepared | Ask]) -> None:
        """Hand samples on, those to be answered first; returns when there was room for all that are not withdrawn."""
        self._in_hand.extend(sorted(samples, key=lambda sample: not isinstance(sample, Ask)))
        while self._in_hand:
            sample = self._in_hand[0]
            if isinstance(sample, Ask):
                if self._generator is None:
                    raise AssertionError("nothing is to be answered")
                if self._generator.asks.has_room:
                    self._generator.asks.put(sample)
                    self._in_hand.popleft()
                else:
                    await self._generator.asks.changed()
            elif self._queue.has_room:
                self._in_hand.popleft()
                await self._queue.put([Item(sample, self._next_row())])
            else:
                await self._queue.changed()

    def _next_row(self) -> int:
        row = self._rows
        self._rows += 1
        return row

    async def _dispatch(self, group: anyio.abc.TaskGroup) -> None:
        while True:
            self._starving = not self._queue.has_ready
            self._name_who_starves()
            item = await self._queue.get()
            self._starving = False
            if item is None:
                return
            self.limiter.wait_for("", time.monotonic())
            backend = await self._dispatcher.place(item)
            found = None if item.attempt else self._meanwhile.content(item.sample.sample_id)
            if backend is not None and found is not None:  # the credit for it lapses with the next heartbeat
                await self._endings.done_elsewhere(item.sample, found)
                self._queue.settle(item)
            elif backend is not None:
                attempt = backend.attempt(self._run, item)
                self._endings.begin(attempt, item, backend)
                group.start_soon(self._guard, self._sender.send, backend, item, attempt)

    def _name_who_starves(self) -> None:
        """Nothing is ready to be captured: say whom that waits for, which changes while it does."""
        if not self._starving:
            return
        # At the end of the input only answers and records are waited for.
        party: Party = "mover" if self.to_store > self.in_flight else "server"
        if not self._queue.input_rests:
            party = "server" if self.generating else "tokeniser"
        elif not self._queue.unsettled and not self.generating:
            party = ""
        self.limiter.wait_for(party, time.monotonic())

    async def _heartbeat(self) -> None:
        while True:
            self._name_who_starves()
            at_s = anyio.current_time()
            for storage in self.storages:
                await storage.beat()
                if storage.not_stored and not storage.keeper.waiting:
                    self._announce(storage.not_stored)
                    self._tally.waited(storage.not_stored, HEARTBEAT_S)
                storage.check(at_s, left=self.left)
            await self._servers.beat(excuse=self._ledger.trouble or self._answers_trouble)
            self._announcer.calm(at_s, waiting=bool(self.waiting))
            await anyio.sleep(HEARTBEAT_S)

    async def _follow(self) -> None:
        """See what other clients get done; apart from the heartbeat, which must not wait for a slow destination."""
        while True:
            async with self._looking:
                with contextlib.suppress(OSError):  # a destination that is away is noticed by those who need it
                    await anyio.to_thread.run_sync(self._meanwhile.look)
                self._meanwhile.note()
            await anyio.sleep(HEARTBEAT_S)

    async def look_around(self) -> None:
        """Know what other clients have got done by now; waits where the destination is away for a while.

        Raises:
            DestinationBroken: it is so for too long.
        """
        look = functools.partial(self._meanwhile.look, closely=True)
        give_up_s = anyio.current_time() + self._settings.mover_timeout_s
        while True:
            try:
                async with self._looking:
                    await anyio.to_thread.run_sync(look)
                    self._meanwhile.note()
            except OSError as error:
                if anyio.current_time() >= give_up_s:
                    raise DestinationBroken(path=self._ledger.path, reason=error.strerror or error) from None
                self._announce(f"the ledgers of other clients ({error.strerror or error})")
                await anyio.sleep(HEARTBEAT_S)
            else:
                return

    def _settle(self, attempt: Attempt, verdict: Verdict) -> None:
        self._endings.settle(attempt, verdict)

    def _changed(self) -> None:
        self._dispatcher.changed()
        if self._generator is not None:
            self._generator.changed()

    def _announce(self, reason: str) -> None:
        self._announcer.announce(reason, anyio.current_time())


def _rejected(judged: Judged) -> Rejected:
    return Rejected(
        sample_id=judged.sample_id,
        row=judged.where,
        reason=judged.reason,
        content=judged.content,
        context_tokens=judged.context_tokens,
    )
