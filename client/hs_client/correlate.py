"""Joins answers with parts: follows every attempt of this run until its record is complete or its time is over."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

import anyio
import anyio.to_thread

from hs_client.attempt import Answer, Attempt, Key, Phase, Verdict, judge_answer
from hs_client.scan import Look, Scanner
from hs_formats.names import rid_of_part

__all__ = ["Correlator"]

_FAST_S = 0.05
_SLOW_S = 1.0
_SPARE_DUE = 1024
_LOOKS_SHARE = 0.2
"""Of the time, at most, goes into looking: where scratch holds very many parts a look takes long."""


class Correlator:
    """All attempts whose parts may still come to one scratch.

    One look at scratch and manifest serves them all; the work after it is in proportion to what has changed, not to
    what waits. `settle(attempt, verdict)` is called once for each attempt that ends after its answer, and for a lost
    one whose record turns out to be complete.

    Args:
        scanner: of this run.
        part_timeout_s: how long after the answer rows may be missing.
        settle: told how an attempt ended.
    """

    def __init__(self, scanner: Scanner, *, part_timeout_s: float, settle: Callable[[Attempt, Verdict], None]) -> None:
        self._scanner = scanner
        self._part_timeout_s = part_timeout_s
        self._settle = settle
        self._attempts: dict[str, Attempt] = {}
        self._present: dict[str, set[Key]] = {}
        self._due: list[tuple[float, str]] = []
        self._phases: Counter[Phase] = Counter()
        self._promised_bytes = 0
        self._to_store = 0
        self._lock = anyio.Lock()
        self._wake = anyio.Event()
        self.trouble = ""
        self.last_part_s = 0.0
        self.last_line_s = 0.0
        self.look_s = 0.0

    def outstanding_bytes(self) -> int:
        """What all attempts may still write to scratch."""
        return self._promised_bytes

    def count(self, phase: Phase) -> int:
        """Attempts in a phase."""
        return self._phases[phase]

    def to_store(self) -> int:
        """Records that are whole and lack only their manifest lines."""
        return self._to_store

    def _account(self, attempt: Attempt, sign: int) -> None:
        """Take the attempt out of the sums before it changes (-1), and into them after (+1)."""
        self._phases[attempt.phase] += sign
        self._promised_bytes += sign * attempt.promised_bytes()
        self._to_store += sign * (attempt.phase is Phase.ANSWERED and attempt.all_seen)

    def add(self, attempt: Attempt) -> None:
        """Follow an attempt that is about to be sent."""
        self._attempts[attempt.rid] = attempt
        self._account(attempt, +1)
        self._wake.set()

    def answered(self, attempt: Attempt, answer: Answer) -> None:
        """The server has finished the request."""
        if attempt.phase is not Phase.FLYING:
            return  # its failure was noted while the answer was on its way
        verdict = judge_answer(answer, attempt.sample.n)
        aborted = verdict.kind == "aborted"
        self._account(attempt, -1)
        attempt.answer = answer
        attempt.phase = Phase.ANSWERED if verdict.done else Phase.CLOSED if aborted else Phase.LINGERING
        self._account(attempt, +1)
        if not verdict.done:
            self._end(attempt, verdict, attempt.phase)
        self._wait_until(attempt, anyio.current_time() + self._part_timeout_s)
        self._check(attempt, anyio.current_time())

    def lost(self, attempt: Attempt) -> None:
        """No answer came, but the record still may."""
        if attempt.phase is Phase.FLYING:
            self._account(attempt, -1)
            attempt.phase = Phase.LINGERING
            self._account(attempt, +1)
            self._wait_until(attempt, anyio.current_time() + self._part_timeout_s)
            self._check(attempt, anyio.current_time())

    def drop(self, attempt: Attempt) -> None:
        """Nothing will come of it: it was never accepted, or its time is over."""
        if self._attempts.pop(attempt.rid, None) is not None:
            self._account(attempt, -1)
            self._present.pop(attempt.rid, None)
        attempt.phase = Phase.CLOSED

    def _end(self, attempt: Attempt, verdict: Verdict, phase: Phase) -> None:
        if phase is Phase.CLOSED:
            self.drop(attempt)
        self._settle(attempt, verdict)

    def _wait_until(self, attempt: Attempt, at_s: float) -> None:
        attempt.deadline_s = at_s
        heapq.heappush(self._due, (at_s, attempt.rid))
        if len(self._due) > _SPARE_DUE + 2 * len(self._attempts):
            # Most attempts end long before their time: their entries would be kept for a whole part time-out.
            self._due = [due for due in self._due if due[1] in self._attempts]
            heapq.heapify(self._due)

    async def serve(self) -> None:
        """Look around for as long as the run lasts, often while something happens, seldom while nothing does."""
        pause_s = _FAST_S
        while True:
            changed = await self.tick()
            pause_s = _FAST_S if changed else min(_SLOW_S, 1.5 * pause_s)
            if not self._attempts:
                self._wake = anyio.Event()
                await self._wake.wait()
                pause_s = _FAST_S
            await anyio.sleep(max(pause_s, self.look_s / _LOOKS_SHARE))

    async def tick(self) -> bool:
        """One look; True when it found something new. Several callers may ask at a time."""
        async with self._lock:
            started_s = anyio.current_time()
            try:
                look = await anyio.to_thread.run_sync(self._scanner.look)
            except OSError as error:
                self.trouble = f"{error.filename or 'scratch'}: {error.strerror or error}"
                return False
            self.trouble = ""
            self._apply(look)
            self.look_s = anyio.current_time() - started_s
            return bool(look)

    def _apply(self, look: Look) -> None:
        now_s = anyio.current_time()
        touched: dict[str, Attempt] = {}

        def touch(rid: str) -> Attempt | None:
            attempt = self._attempts.get(rid)
            if attempt is not None and rid not in touched:
                touched[rid] = attempt
                self._account(attempt, -1)
            return attempt

        for rid, part in look.appeared:
            attempt = touch(rid)
            if attempt is not None:
                self._present.setdefault(rid, set()).add((part.rank, part.start, part.stop))
                if attempt.note_part(part):
                    self.last_part_s = now_s
        for rid, part in look.gone:
            self._present.get(rid, set()).discard((part.rank, part.start, part.stop))
        for line in look.lines:
            self.last_line_s = now_s
            attempt = touch(rid_of_part(line.part))
            if attempt is not None:
                attempt.note_line(line)
        for attempt in touched.values():
            self._account(attempt, +1)
        for failure in look.failures:
            attempt = self._attempts.get(failure.rid)
            if attempt is not None and attempt.phase is Phase.LINGERING:
                self.drop(attempt)
            elif attempt is not None:
                self._end(attempt, Verdict("capture failed", failure.reason), Phase.CLOSED)
        for attempt in touched.values():
            self._check(attempt, now_s)
        while self._due and self._due[0][0] <= now_s:
            _, rid = heapq.heappop(self._due)
            due = self._attempts.get(rid)
            if due is not None and due.deadline_s <= now_s:
                self._check(due, now_s)

    def _check(self, attempt: Attempt, now_s: float) -> None:
        if attempt.phase is Phase.LINGERING:
            self._check_lingering(attempt, now_s)
        elif attempt.phase is Phase.ANSWERED:
            verdict = attempt.verdict(now_s, self._present.get(attempt.rid, ()))
            if verdict is not None:
                self._end(attempt, verdict, Phase.CLOSED)
            elif attempt.deadline_s <= now_s:  # all of it lies in scratch, or did a moment ago
                self._wait_until(attempt, now_s + self._part_timeout_s)

    def _check_lingering(self, attempt: Attempt, now_s: float) -> None:
        over = now_s >= attempt.deadline_s
        if attempt.answer is not None:
            if over or attempt.all_seen:
                self.drop(attempt)
            return
        # Without an answer the record itself must convince; it may still spare its sample a second request.
        verdict = attempt.verdict(-1.0, ())
        if verdict is not None and verdict.done:
            self._end(attempt, verdict, Phase.CLOSED)
        elif verdict is not None or (over and not attempt.all_there(self._present.get(attempt.rid, ()))):
            self.drop(attempt)
        elif over:
            self._wait_until(attempt, now_s + self._part_timeout_s)
