"""Joins answers with parts: follows every attempt of this run until its record is complete or its time is over."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread

from hs_client.attempt import Answer, Attempt, Key, Phase, Verdict, judge_answer
from hs_client.scan import Look, Scanner
from hs_formats.names import rid_of_part

__all__ = ["Correlator"]

_FAST_S = 0.05
_SLOW_S = 1.0
_SWEEP_S = 1.0


class Correlator:
    """All attempts whose parts may still come.

    One look at scratch and manifest serves them all. `settle(attempt, verdict)` is called once for each attempt that
    ends after its answer, and for a lost one whose record turns out to be complete.

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
        self._in_scratch: dict[str, set[Key]] = {}
        self._lock = anyio.Lock()
        self._wake = anyio.Event()
        self._swept_s = 0.0
        self.trouble = ""
        self.last_part_s = 0.0
        self.last_line_s = 0.0

    def outstanding_bytes(self) -> int:
        """What all attempts may still write to scratch."""
        return sum(attempt.promised_bytes() for attempt in self._attempts.values())

    def count(self, phase: Phase) -> int:
        """Attempts in a phase."""
        return sum(attempt.phase is phase for attempt in self._attempts.values())

    def to_store(self) -> int:
        """Records that are whole and lack only their manifest lines."""
        return sum(a.phase is Phase.ANSWERED and a.all_seen for a in self._attempts.values())

    def add(self, attempt: Attempt) -> None:
        """Follow an attempt that is about to be sent."""
        self._attempts[attempt.rid] = attempt
        self._wake.set()

    def answered(self, attempt: Attempt, answer: Answer) -> None:
        """The server has finished the request."""
        if attempt.phase is not Phase.FLYING:
            return  # its failure was noted while the answer was on its way
        attempt.answer = answer
        verdict = judge_answer(answer, attempt.sample.n)
        attempt.deadline_s = anyio.current_time() + self._part_timeout_s
        if verdict.done:
            attempt.phase = Phase.ANSWERED
            self._check(attempt, anyio.current_time())
        else:
            self._end(attempt, verdict, Phase.CLOSED if verdict.kind == "aborted" else Phase.LINGERING)

    def lost(self, attempt: Attempt) -> None:
        """No answer came, but the record still may."""
        if attempt.phase is Phase.FLYING:
            attempt.phase = Phase.LINGERING
            attempt.deadline_s = anyio.current_time() + self._part_timeout_s

    def drop(self, attempt: Attempt) -> None:
        """The request was never accepted: nothing will come of it."""
        attempt.phase = Phase.CLOSED
        self._attempts.pop(attempt.rid, None)

    def _end(self, attempt: Attempt, verdict: Verdict, phase: Phase) -> None:
        attempt.phase = phase
        if phase is Phase.CLOSED:
            self._attempts.pop(attempt.rid, None)
        self._settle(attempt, verdict)

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
            await anyio.sleep(pause_s)

    async def tick(self) -> bool:
        """One look; True when it found something new. Several callers may ask at a time."""
        async with self._lock:
            try:
                look = await anyio.to_thread.run_sync(self._scanner.look)
            except OSError as error:
                self.trouble = f"{error.filename or 'scratch'}: {error.strerror or error}"
                return False
            self.trouble = ""
            return self._apply(look)

    def _apply(self, look: Look) -> bool:
        now_s = anyio.current_time()
        touched: dict[str, Attempt] = {}
        self._in_scratch = {}
        for rid, parts in look.parts.items():
            attempt = self._attempts.get(rid)
            if attempt is None:
                continue
            self._in_scratch[rid] = {(part.rank, part.start, part.stop) for part in parts}
            for part in parts:
                if attempt.note_part(part):
                    touched[rid] = attempt
                    self.last_part_s = now_s
        for line in look.lines:
            self.last_line_s = now_s
            attempt = self._attempts.get(rid_of_part(line.part))
            if attempt is not None and attempt.note_line(line):
                touched[attempt.rid] = attempt
        for failure in look.failures:
            attempt = self._attempts.get(failure.rid)
            touched.pop(failure.rid, None)
            if attempt is not None and attempt.phase is Phase.LINGERING:
                self.drop(attempt)
            elif attempt is not None:
                self._end(attempt, Verdict("capture failed", failure.reason), Phase.CLOSED)
        due = list(touched.values())
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            due = [attempt for attempt in self._attempts.values() if attempt.rid in touched or attempt.deadline_s]
        for attempt in due:
            self._check(attempt, now_s)
        return bool(touched or look.lines or look.failures)

    def _check(self, attempt: Attempt, now_s: float) -> None:
        if attempt.phase is Phase.LINGERING:
            self._check_lingering(attempt, now_s)
            return
        if attempt.phase is not Phase.ANSWERED:
            return
        in_scratch = self._in_scratch.get(attempt.rid, set())
        verdict = attempt.verdict(now_s, in_scratch)
        if verdict is None:
            if attempt.all_there(in_scratch):
                attempt.deadline_s = now_s + self._part_timeout_s
            return
        self._end(attempt, verdict, Phase.CLOSED)

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
        elif verdict is not None or (over and not attempt.all_there(self._in_scratch.get(attempt.rid, set()))):
            self.drop(attempt)
