"""One run: tokenised samples go through admission to the server, their records are awaited, the ledger is kept.

The tasks and what they wait for: a feeder (tokenizer thread), `concurrency` workers (one connection each; they take the
next sample under one lock, so that credit is granted in order), the correlator, the ledger, the settler that writes
outcomes in groups, the gate that pauses a lost server, the heartbeat.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread

from hs_client._http import Busy, Denied, Lost, Refused, ServerClient, Unreachable, api_key, shared_tls
from hs_client.admission import RecordCost
from hs_client.attempt import Attempt, Phase, Verdict
from hs_client.correlate import Correlator
from hs_client.credits import CreditKeeper
from hs_client.errors import MoverElsewhere, NothingWorks, ScratchBroken, ServerDenies
from hs_client.gate import ServerGate
from hs_client.ledger_log import LedgerLog
from hs_client.outcomes import Outcome, ledger_lines
from hs_client.preflight import Place, ServerFacts
from hs_client.prepare import Source
from hs_client.probe import ServerProbe
from hs_client.scan import Scanner
from hs_client.settings import RunSettings
from hs_client.tally import Tally
from hs_client.watch import Watch
from hs_client.work import Item, WorkQueue
from hs_formats.control import HEARTBEAT_S
from hs_formats.errors import HsError
from hs_formats.ledger import Failed, Intent, LedgerLine, Rejected
from hs_formats.names import MAX_ATTEMPT, Rid

__all__ = ["Runner"]

_MAX_LOST = 10
_FIRST_WAIT_S = 0.02
_MAX_WAIT_S = 0.5
_INTERRUPT_S = 10.0
_BEATS_TO_SERVER_CHECK = 5
_FAILED_BEFORE_DONE = 64
_FAILED_AFTER_DONE = 512


class Runner:
    """Everything that happens between preflight and summary.

    Args:
        settings: of the run.
        run: its id.
        place: scratch and dataset.
        server: as preflight found it.
        source: the samples.
        ledger: of this run, with its first line written.
        tally: counts; the caller shows them.
        say: prints a line for the user.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        run: str,
        place: Place,
        server: ServerFacts,
        source: Source,
        ledger: LedgerLog,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        marker = server.marker
        self._settings = settings
        self._run = run
        self._place = place
        self._server = server
        self._source = source
        self._ledger = ledger
        self._tally = tally
        self._cost = RecordCost.of(
            writers=marker.writers,
            ranks=len(marker.expected_ranks),
            bytes_per_token=marker.bytes_per_token,
            chunk_tokens=marker.chunk_size,
        )
        self._queue = WorkQueue(capacity=max(64, 2 * settings.concurrency))
        self._correlator = Correlator(
            Scanner(place.control, place.paths, {run}), part_timeout_s=settings.part_timeout_s, settle=self._on_settle
        )
        self._probe = ServerProbe(server, place.control)
        self._gate = ServerGate(
            server.url, timeout_s=settings.server_timeout_s, probe=self._probe.probe, left=lambda: self.left
        )
        self._keeper = CreditKeeper(place.control, run, outstanding=self._correlator.outstanding_bytes)
        self._admission = anyio.Lock()
        self._items: dict[str, Item] = {}
        self._outcomes: list[Outcome] = []
        self._outcome_ready = anyio.Event()
        self._rows = 0
        self._failed_in_a_row = 0
        self._watch = Watch(settings, dst=place.paths.root.parent, at_s=anyio.current_time(), say=say)
        self.interrupted = False
        self._error: HsError | None = None
        self._scope = anyio.CancelScope()

    @property
    def left(self) -> int:
        """Samples that are neither done, failed nor rejected."""
        t = self._tally
        return max(0, t.total - t.done - t.failed - t.rejected)

    @property
    def waiting(self) -> str:
        """What the run waits for just now; empty while requests flow."""
        if not self._gate.is_open:
            return f"the server ({self._gate.reason})"
        return self._keeper.waiting or self._correlator.trouble or self._ledger.trouble or self._not_stored

    @property
    def _not_stored(self) -> str:
        """Why records that are whole are not stored, although nothing waits for a grant; empty while they are."""
        return self._keeper.mover_trouble() if self.to_store else ""

    @property
    def to_store(self) -> int:
        """Records that wait for the mover."""
        return self._correlator.to_store()

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return self._correlator.count(Phase.FLYING)

    async def run(self) -> None:
        """Do it all.

        Raises:
            HsError: the run could not be finished; what is left stays pending.
        """
        tls = shared_tls()
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for task in (
                        self._correlator.serve,
                        self._ledger.serve,
                        self._gate.serve,
                        self._heartbeat,
                        self._settler,
                        self._feeder,
                    ):
                        group.start_soon(self._guard, task)
                    for _ in range(self._settings.concurrency):
                        client = ServerClient(
                            self._server.url, tls=tls, read_timeout_s=self._settings.request_timeout_s, key=api_key()
                        )
                        group.start_soon(self._guard, self._worker, client)
                    await self._queue.wait_finished()
                    group.cancel_scope.cancel()
        finally:
            nothing_to_come = not self._correlator.outstanding_bytes()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(lambda: self._keeper.close(remove=nothing_to_come))
        if self._error is not None:
            raise self._error

    async def _guard(self, task: Callable[..., Awaitable[None]], *arguments: object) -> None:
        try:
            await task(*arguments)
        except HsError as error:
            self._error = self._error or error
            self._scope.cancel()
        except OSError as error:
            path, reason = error.filename or self._settings.scratch, error.strerror or error
            self._error = self._error or ScratchBroken(path=path, reason=reason, left=self.left)
            self._scope.cancel()

    async def interrupt(self) -> None:
        """Grant nothing more, wait a little for what is in flight, then end `run`."""
        self.interrupted = True
        self._queue.close()
        with anyio.move_on_after(_INTERRUPT_S):
            while self._pending_attempts():
                await self._correlator.tick()
                await anyio.sleep(0.05)
        self.stop()

    def _pending_attempts(self) -> bool:
        return bool(self._correlator.count(Phase.FLYING) or self._correlator.count(Phase.ANSWERED) or self._outcomes)

    def stop(self) -> None:
        """End `run` now."""
        self.interrupted = True
        self._scope.cancel()

    # -- input

    async def _feeder(self) -> None:
        while not self._queue.closed:
            batch = await anyio.to_thread.run_sync(self._source.next_batch)
            if batch is None:
                break
            samples, rejected = batch
            lines: list[LedgerLine] = []
            for judged in rejected:
                self._tally.rejected += 1
                self._tally.problem(f"{judged.where}: rejected: {judged.reason}")
                if not judged.known:
                    lines.append(
                        Rejected(
                            sample_id=judged.sample_id,
                            row=judged.where,
                            reason=judged.reason,
                            content=judged.content,
                            context_tokens=judged.context_tokens,
                        )
                    )
            if lines:
                await self._ledger.commit(*lines)
            await self._queue.put(Item(sample, self._next_row()) for sample in samples)
        self._queue.end_input()

    def _next_row(self) -> int:
        row = self._rows
        self._rows += 1
        return row

    # -- requests

    async def _worker(self, client: ServerClient) -> None:
        try:
            while True:
                async with self._admission:
                    item = await self._queue.get()
                    if item is None:
                        return
                    attempt = await self._admit(item)
                if attempt is not None:
                    await self._send(client, item, attempt)
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()

    async def _admit(self, item: Item) -> Attempt | None:
        longest, n = self._server.longest_prompt, item.sample.n
        if 0 < longest < n:
            # Not a fault of the row: the same model with more room for its KV cache takes it.
            await self._give_up(item, "", Verdict("too long", f"{n} tokens, and this server takes {longest} at most"))
            return None
        need_bytes = self._cost.record(n)
        pause_s = _FIRST_WAIT_S
        while not self._queue.closed and not item.settled:
            await self._gate.wait()
            if not self._settings.admission:
                return self._attempt(item)
            decision = await self._keeper.take(need_bytes)
            if decision.verdict == "grant":
                self._watch.moved(anyio.current_time())
                return self._attempt(item)
            if decision.verdict in ("later", "never"):
                await self._give_up(item, "", Verdict("too large", decision.reason))
                return None
            self._announce(decision.reason)
            started_s = anyio.current_time()
            await anyio.sleep(pause_s)
            await self._correlator.tick()
            self._tally.waited(decision.reason, anyio.current_time() - started_s)
            pause_s = min(_MAX_WAIT_S, 1.5 * pause_s)
        self._keeper.waiting = ""
        return None

    def _attempt(self, item: Item) -> Attempt:
        """Register the attempt; no await may lie between its grant and this."""
        rid = str(Rid(self._run, item.row, item.attempt))
        item.attempt += 1
        marker = self._server.marker
        attempt = Attempt(rid, item.sample, item.tries, self._cost, marker.writers, marker.expected_ranks)
        self._items[rid] = item
        if not self._correlator.count(Phase.FLYING):
            self._watch.heard(anyio.current_time())
        self._correlator.add(attempt)
        return attempt

    async def _send(self, client: ServerClient, item: Item, attempt: Attempt) -> None:
        sample = item.sample
        await self._ledger.commit(
            Intent(
                sample_id=sample.sample_id,
                rid=attempt.rid,
                n=sample.n,
                ids_xxh3=sample.ids_hash,
                mask=sample.spans,
                row=sample.where,
                content=sample.content,
                cut_from=sample.cut_from,
            )
        )
        self._tally.sent += 1
        try:
            answer = await client.generate(attempt.rid, sample.ids)
        except Denied as error:
            raise ServerDenies(url=self._server.url, reason=error) from None
        except Refused as error:
            self._server_spoke()
            self._correlator.drop(attempt)
            self._items.pop(attempt.rid, None)
            verdict = Verdict("refused", f"the server refuses it: {error}")
            await self._give_up(item, attempt.rid, verdict)
            self._check_streak(verdict)
        except (Busy, Unreachable) as error:
            self._correlator.drop(attempt)
            self._items.pop(attempt.rid, None)
            self._gate.failed(str(error))
            self._announce(f"the server: {error}")
            await self._ledger.commit(
                Failed(sample_id=sample.sample_id, rid=attempt.rid, kind="not taken", reason=str(error))
            )
            await self._again(item, Verdict("not taken", str(error)))
        except Lost as error:
            self._correlator.lost(attempt)
            self._gate.failed(str(error))
            self._announce(f"the server: {error}")
            item.lost += 1
            verdict = Verdict("lost", f"no answer: {error}")
            if item.lost > _MAX_LOST:
                await self._give_up(item, attempt.rid, verdict)
            else:
                await self._again(item, verdict)
        else:
            self._server_spoke()
            self._correlator.answered(attempt, answer)

    def _server_spoke(self) -> None:
        self._gate.ok()
        self._watch.heard(anyio.current_time())

    async def _again(self, item: Item, verdict: Verdict) -> None:
        if item.settled or self._queue.closed:
            return
        if item.attempt > MAX_ATTEMPT:
            await self._give_up(item, "", verdict)
            return
        self._tally.retried += 1
        self._queue.again(item)

    async def _give_up(self, item: Item, rid: str, verdict: Verdict) -> None:
        """The sample has failed for this run; the next one tries again."""
        if item.settled:
            return
        sample = item.sample
        await self._ledger.commit(Failed(sample_id=sample.sample_id, rid=rid, kind=verdict.kind, reason=verdict.reason))
        self._count_failed(item, verdict)

    def _check_streak(self, verdict: Verdict) -> None:
        """When nothing works any more the fault is not the samples': keep them pending instead of failing them all."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= (_FAILED_AFTER_DONE if self._tally.done else _FAILED_BEFORE_DONE):
            raise NothingWorks(count=self._failed_in_a_row, reason=verdict.reason, left=self.left, url=self._server.url)

    def _count_failed(self, item: Item, verdict: Verdict) -> None:
        self._tally.failed += 1
        self._tally.problem(f"{item.sample.where}: failed ({verdict.kind}): {verdict.reason}")
        self._queue.settle(item)

    # -- outcomes

    def _on_settle(self, attempt: Attempt, verdict: Verdict) -> None:
        item = self._items.pop(attempt.rid, None)
        if item is not None:
            self._outcomes.append(Outcome(item, attempt, verdict))
            self._outcome_ready.set()

    async def _settler(self) -> None:
        while True:
            await self._outcome_ready.wait()
            self._outcome_ready = anyio.Event()
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
            t = self._tally
            self._failed_in_a_row = 0
            t.done += 1
            t.adopted += attempt.answer is None
            t.tokens += item.sample.n
            t.trained_tokens += sum(stop - start for start, stop in item.sample.spans)
            t.raw_bytes += sum(line.raw_bytes for line in attempt.lines.values())
            t.stored_bytes += sum(line.stored_bytes for line in attempt.lines.values())
            self._queue.settle(item)
            return
        self._check_streak(verdict)
        if item.tries < self._settings.max_retries and item.attempt <= MAX_ATTEMPT:
            item.tries += 1
            await self._again(item, verdict)
        else:
            self._count_failed(item, verdict)

    # -- supervision

    async def _heartbeat(self) -> None:
        beats = 0
        while True:
            await self._keeper.publish()
            mover = await anyio.to_thread.run_sync(self._keeper.read_mover)
            if mover is not None and mover.dst != self._place.mover.dst:
                raise MoverElsewhere(
                    scratch=self._settings.scratch, now=mover.dst, then=self._place.mover.dst, left=self.left
                )
            self._supervise()
            # A server can be replaced while nothing is in flight, so that no request notices.
            if beats % _BEATS_TO_SERVER_CHECK == 0:
                await self._probe.armed()
            beats += 1
            await anyio.sleep(HEARTBEAT_S)

    def _supervise(self) -> None:
        at_s = anyio.current_time()
        correlator, watch = self._correlator, self._watch
        watch.calm(at_s, waiting=bool(self.waiting))
        watch.heard(correlator.last_part_s)
        watch.moved(correlator.last_line_s)
        if self._ledger.trouble:
            watch.heard(at_s)  # requests wait for their intents to be written: the server cannot have answered them
        if self._gate.is_open:
            watch.check_server(at_s, in_flight=self.in_flight, left=self.left)
        reason = self._keeper.waiting or correlator.trouble
        if not reason and (reason := self._not_stored):
            self._announce(reason)
            self._tally.waited(reason, HEARTBEAT_S)
        waiting = bool(reason or self.to_store)
        watch.check_storage(at_s, mover=self._keeper.mover, reason=reason, waiting=waiting, left=self.left)

    def _announce(self, reason: str) -> None:
        self._watch.announce(reason, anyio.current_time())
