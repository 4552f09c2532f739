"""Has the servers answer what is to be answered, and hands the samples on to be captured.

Each worker sees one sample through all of its turns. An answer is in the dataset's `responses` before anything else is
made of it, and is looked for there before it is asked for. Capture waits for room in scratch, generation does not: what
is answered meanwhile waits in the queue, up to a number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt

from hs_client._http import Busy, Denied, Generated, Lost, Refused, RequestError, Unreachable
from hs_client.attempt import Verdict
from hs_client.backend import Backend
from hs_client.endings import retry_pause_s
from hs_client.errors import ServerDenies
from hs_client.generate.answers import Answers
from hs_client.generate.asks import AskQueue
from hs_client.generate.judging import check_generated, judge, usable_again
from hs_client.generate.options import GenerateOptions
from hs_client.ledger_log import LedgerLog
from hs_client.prepare import Ask, Prepared, Source
from hs_client.row_error import RowError
from hs_client.servers import Servers
from hs_client.tally import Tally
from hs_client.work import Item, WorkQueue
from hs_formats.hashing import ids_xxh3
from hs_formats.ledger import Failed, Rejected
from hs_formats.names import generation_rid
from hs_formats.responses import Response, ResponseFacts

__all__ = ["Generator"]

_MAX_LOST = 10
_LOOK_AGAIN_S = 0.5

Ids = npt.NDArray[np.int32]


class _GivenUp(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class Generator:
    """Answers samples; `workers` tasks must run `work`.

    Args:
        options: of the run.
        run: its id.
        source: knows how conversations go on; asked in a thread, under `tokenizing`.
        tokenizing: whoever uses `source` holds it.
        servers: to send to.
        config_hash: of their model.
        answers: of earlier runs.
        log: of this run's answers.
        ledger: for samples that cannot become any.
        tally: counts.
        queue: takes the answered samples.
        next_row: gives each of them its ordinal in the run.
        max_retries: further requests for an answer that the server gave up.
        train_last: only the last answer of a conversation is trained on.
        announce: says what is waited for.

    Attributes:
        asks: samples to be answered, which wait for a worker.
    """

    def __init__(
        self,
        options: GenerateOptions,
        *,
        run: str,
        source: Source,
        tokenizing: anyio.Lock,
        servers: Servers,
        config_hash: str,
        answers: Answers,
        log: LedgerLog,
        ledger: LedgerLog,
        tally: Tally,
        queue: WorkQueue,
        next_row: Callable[[], int],
        max_retries: int,
        train_last: bool,
        announce: Callable[[str], None],
    ) -> None:
        self._options = options
        self._run = run
        self._source = source
        self._tokenizing = tokenizing
        self._servers = servers
        self._config_hash = config_hash
        self._answers = answers
        self._log = log
        self._ledger = ledger
        self._tally = tally
        self._counts = tally.generation
        self._queue = queue
        self._next_row = next_row
        self._max_retries = max_retries
        self._train_last = train_last
        self._announce = announce
        self._settings_hash = options.settings_hash
        self._numbers = 0
        self._news = anyio.Event()
        self.workers = options.concurrency * len(servers.backends)
        self._working = self.workers
        self._all_done = anyio.Event()
        self.asks = AskQueue(self.workers)

    @property
    def in_flight(self) -> int:
        """Requests without an answer."""
        return sum(backend.answering for backend in self._servers.backends)

    @property
    def unfinished(self) -> bool:
        """Requests are in flight, or answers of them are not kept yet."""
        return self.in_flight > 0 or self._log.unwritten

    @property
    def trouble(self) -> str:
        """Why answers cannot be kept just now; empty while they can."""
        return self._log.trouble

    def changed(self) -> None:
        """A server has become ready, or was dropped."""
        self._news.set()

    async def finish(self) -> None:
        """Return when all `asks` are answered or given up; none may follow."""
        self.asks.end()
        await self._all_done.wait()

    async def work(self) -> None:
        """Answer one sample after the other, until `finish`.

        Raises:
            HsError: nothing will be answered any more.
        """
        while (ask := await self.asks.get()) is not None:
            if not self._queue.closed:
                await self._do(ask)
        self._working -= 1
        if not self._working:
            self._all_done.set()

    async def _do(self, ask: Ask) -> None:
        try:
            sample = await self._answered(ask)
        except RowError as error:
            line = Rejected(
                sample_id=ask.sample_id,
                row=ask.where,
                reason=error.reason,
                content=ask.row.content,
                context_tokens=error.context_tokens,
            )
            await self._ledger.commit(line)
            self._tally.reject_answer(ask, error.reason)
        except _GivenUp as given:
            kind, reason = given.verdict.kind, given.verdict.reason
            await self._ledger.commit(Failed(sample_id=ask.sample_id, rid="", kind=kind, reason=reason))
            self._tally.fail(ask, given.verdict)
        else:
            if sample is not None:
                await self._queue.put_answered(Item(sample, self._next_row()))

    async def _answered(self, ask: Ask) -> Prepared | None:
        """The sample with its answers; None where the run ends before.

        Raises:
            RowError: its answers make no sample.
            _GivenUp: no answer could be had.
        """
        ids, limits = ask.ids, self._source.limits
        spans: list[tuple[int, int]] = []
        ends: list[str] = []
        for turn in range(ask.turns):
            room = limits.longest - len(ids)
            if room < 1:
                reason = f"too long: {len(ids)} tokens leave no room for the answer of turn {turn + 1}"
                raise RowError(reason, context_tokens=len(ids) + 1)
            response = await self._response(ask, ids, turn, room)
            if response is None:
                return None
            how = judge(response, self._options, truncate=limits.truncate)
            start = len(ids)
            ids = _joined(ids, response.output_ids)
            spans.append((start, len(ids)))
            ends.append(response.finish_reason)
            if how == "cut":
                self._counts.cut += 1
                break
            if turn + 1 < ask.turns:
                ids = _joined(ids, await self._between(ask, turn, response))
        return Prepared(
            ask.sample_id,
            ask.where,
            ids,
            spans[-1:] if self._train_last else spans,
            ids_xxh3(ids.tolist()),
            ask.row.content,
            answers=tuple(ends),
            number=ask.number,
        )

    async def _between(self, ask: Ask, turn: int, response: Response) -> list[int]:
        last = None if isinstance(response.matched, str) else response.output_ids[-1]

        def between() -> list[int]:
            try:
                return self._source.between(ask, turn, last)
            finally:
                self._source.note(ask.where)

        async with self._tokenizing:
            return await anyio.to_thread.run_sync(between)

    async def _response(self, ask: Ask, ids: Ids, turn: int, room: int) -> Response | None:
        """What was answered, by an earlier run or just now, and is durable; None where the run ends before."""
        options = self._options
        question = ResponseFacts(
            sample_id=ask.row.sample_id,
            variant=ask.variant,
            turn=turn,
            prompt_tokens=len(ids),
            prompt_xxh3=ids_xxh3(ids.tolist()),
            asked=min(room, options.max_new_tokens),
            finish_reason="",
            settings=self._settings_hash,
            config_hash=self._config_hash,
        )
        if len(self._answers):
            async with self._tokenizing:
                found = await anyio.to_thread.run_sync(self._answers.find, question)
            if found is not None and usable_again(
                found.asked, found.finish_reason, room=room, max_new_tokens=options.max_new_tokens
            ):
                self._counts.reused += 1
                return found
        return await self._ask(ids, question)

    async def _ask(self, ids: Ids, question: ResponseFacts) -> Response | None:
        options = self._options
        seed = options.seed_of(question.sample_id, question.variant, question.turn)
        sampling = options.sampling(question.asked, seed)
        tries = lost = 0
        while True:
            backend = await self._place(len(ids) + question.asked)
            if backend is None:
                return None
            rid = generation_rid(self._run, self._numbers)
            self._numbers += 1
            started_s = anyio.current_time()
            found = await self._send(backend, rid, ids, sampling)
            seconds = anyio.current_time() - started_s
            if isinstance(found, Generated):
                verdict = check_generated(found, question, vocab_size=self._source.limits.vocab_size, stop=options.stop)
                if verdict.done:
                    backend.answer_breaker.succeeded()
                    response = _response(question, found, rid=rid, server=backend.server.url, seconds=seconds)
                    await self._log.commit(response)
                    self._counts.answered(len(found.output_ids), seconds)
                    return response
                tries += 1
                if tries > self._max_retries:
                    self._servers.failing(backend, verdict, backend.answer_breaker)
                    raise _GivenUp(verdict)
                self._counts.retried += 1
                await anyio.sleep(retry_pause_s(tries))
                continue
            lost += isinstance(found, Lost) and not backend.dropped
            if isinstance(found, Refused):
                verdict = Verdict("refused", f"the server refuses it: {found}")
                self._servers.failing(backend, verdict, backend.answer_breaker)
                raise _GivenUp(verdict)
            if lost > _MAX_LOST:
                raise _GivenUp(Verdict("lost", f"no answer: {found}"))
            self._counts.retried += 1
            if isinstance(found, Denied):
                self._servers.drop(backend, ServerDenies(url=backend.server.url, reason=found))

    async def _place(self, tokens: int) -> Backend | None:
        """The server with the fewest requests for answers among those that take one now; None at the run's end.

        Raises:
            _GivenUp: none takes so many tokens.
        """
        while not self._queue.closed:
            self._news = anyio.Event()
            usable = self._servers.usable
            taking = [backend for backend in usable if tokens <= backend.longest_prompt]
            if usable and not taking:
                longest = max(backend.longest_prompt for backend in usable)
                raise _GivenUp(
                    Verdict("too long", f"{tokens} tokens with the answer, and these servers take {longest} at most")
                )
            ready = [backend for backend in taking if backend.answers_more(self._options.concurrency)]
            if ready:
                return min(ready, key=lambda backend: backend.answering)
            if taking and all(backend.gate.paused for backend in taking):
                self._announce(f"the server ({taking[0].gate.reason})")
            with anyio.move_on_after(_LOOK_AGAIN_S):
                await self._news.wait()
        return None

    async def _send(
        self, backend: Backend, rid: str, ids: Ids, sampling: dict[str, object]
    ) -> Generated | RequestError:
        client = backend.begin_answer()
        self._counts.begin(anyio.current_time())
        error: RequestError = Lost("the server is given up")
        with anyio.CancelScope() as scope:
            backend.watch_over(scope)
            try:
                found = await client.answer(rid, ids, sampling)
            except RequestError as caught:
                error = caught
                if isinstance(caught, Refused):
                    backend.spoke(anyio.current_time())
            else:
                backend.spoke(anyio.current_time())
                return found
            finally:
                self._counts.end(anyio.current_time())
                backend.end_answer(client, scope)
        if isinstance(error, Busy | Unreachable | Lost):
            backend.gate.failed(str(error))
            if not backend.dropped:
                self._announce(f"the server: {error}")
        return error


def _joined(ids: Ids, more: list[int]) -> Ids:
    return np.concatenate([ids, np.asarray(more, dtype=np.int32)])


def _response(question: ResponseFacts, found: Generated, *, rid: str, server: str, seconds: float) -> Response:
    return Response(
        sample_id=question.sample_id,
        variant=question.variant,
        turn=question.turn,
        prompt_tokens=question.prompt_tokens,
        prompt_xxh3=question.prompt_xxh3,
        asked=question.asked,
        tokens=len(found.output_ids),
        finish_reason=found.finish_type,
        settings=question.settings,
        config_hash=question.config_hash,
        output_ids=found.output_ids,
        matched=found.matched,
        rid=rid,
        server=server,
        seconds=round(seconds, 3),
        at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )
