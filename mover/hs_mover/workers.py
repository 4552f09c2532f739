"""The worker threads as one lane sees them: parts go in with a task, results come out in any order, durable."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from hs_mover.backlog import Waiting
from hs_mover.store import run_task
from hs_mover.syncer import Syncer
from hs_mover.task import Outcome, Task

__all__ = ["Result", "Workers"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a part: an outcome or an error."""

    part: Waiting
    outcome: Outcome | None = None
    error: Exception | None = None


class Workers:
    """Hands tasks to a shared pool, what they have written to `syncer`, and calls `wake`, from another thread, for each
    result."""

    def __init__(self, pool: ThreadPoolExecutor, syncer: Syncer, *, wake: Callable[[], None]) -> None:
        self._pool = pool
        self._syncer = syncer
        self._wake = wake
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._futures: dict[str, tuple[Future[None], Waiting]] = {}

    def submit(self, part: Waiting, task: Task) -> None:
        """Have `task` done."""
        self._futures[str(part.name)] = self._pool.submit(self._work, part, task), part

    def results(self) -> Iterator[Result]:
        """What has come in; never waits."""
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                return
            self._futures.pop(str(result.part.name), None)
            yield result

    def cancel_waiting(self) -> list[Waiting]:
        """Take back what no thread has begun."""
        cancelled = [name for name, (future, _) in self._futures.items() if future.cancel()]
        return [self._futures.pop(name)[1] for name in cancelled]

    def _work(self, part: Waiting, task: Task) -> None:
        try:
            outcome = run_task(task)
        except Exception as error:  # noqa: BLE001 - looked at in the lane's own thread
            self._report(Result(part, error=error))
            return
        if outcome.written is None and not outcome.folders:
            self._report(Result(part, outcome=outcome))
            return

        def done(error: Exception | None) -> None:
            self._report(Result(part, outcome=outcome if error is None else None, error=error))

        self._syncer.submit(outcome, done)

    def _report(self, result: Result) -> None:
        self._results.put(result)
        self._wake()
