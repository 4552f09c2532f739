"""The moving thread of one scratch folder: scan, hand parts to workers, commit what they finished, unlink.

Everything that could be shared is owned by this thread; workers get a task and give back a result. A part leaves
scratch in three steps, each durable before the next: its stored file, its manifest line, its unlinking. Whatever fails
in between is done again from the start, and finds its own traces.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hs_formats.control import ControlFolder, MoverState, now_s
from hs_mover.adapt import CodecChoice
from hs_mover.backlog import Backlog, Waiting
from hs_mover.books import Books
from hs_mover.checks import SourceChanged
from hs_mover.config import MoverConfig
from hs_mover.destination import Destination
from hs_mover.heartbeat import Gauges, Heartbeat
from hs_mover.lock import ScratchLock
from hs_mover.looking import SCAN_S, Looking
from hs_mover.name import MoverName
from hs_mover.recovery import Recovery
from hs_mover.registry import Registry
from hs_mover.shared import Shared
from hs_mover.syncer import MAX_GROUP
from hs_mover.task import Elsewhere, Identity, LeftAlone, Outcome, SourceError, Task
from hs_mover.trouble import Trouble
from hs_mover.watch import FolderWatch
from hs_mover.workers import Workers

__all__ = ["Lane"]

_log = logging.getLogger(__name__)

SETTLE_S = 2.0
"""A file that is no whole part is bad once it has not changed for this long: its writer may not know of renames."""

_LEAST_PAUSE_S = 0.002
_BUDGET_BYTES = 1 << 30
_BUDGET_PARTS = 2 * MAX_GROUP  # as many are encoded while as many are synced
_READ_ATTEMPTS = 5
_READ_RETRY_S = 1.0
_REPORT_S = 60.0


class Lane:
    """Moves the parts of one scratch folder until told to stop, or with ``once`` until nothing is left.

    After the end `error` holds what went wrong, `unmoved` how many parts ``once`` had to leave.
    """

    def __init__(self, src: Path, config: MoverConfig, destination: Destination, shared: Shared) -> None:
        self.control = ControlFolder(src)
        self._name = MoverName(src, destination)
        self.gauges = Gauges(last_progress_s=now_s())
        self.error: BaseException | None = None
        self.unmoved = 0
        self._config = config
        self._destination = destination
        self._shared = shared
        self._choice = CodecChoice(config, shared.meter)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._workers = Workers(shared.pool, shared.syncer, wake=self._wake.set)
        lanes = len(config.sources)
        self._backlog = Backlog(budget_bytes=_BUDGET_BYTES // lanes, budget_parts=max(1, _BUDGET_PARTS // lanes))
        self._trouble = Trouble(destination.location)
        self._checked_at_s = float("-inf")
        self._reported_at_s = time.monotonic()
        self._reported_parts = 0
        self._lock = ScratchLock(self.control)
        self._registry: Registry
        self._recovery: Recovery
        self._heartbeat: Heartbeat
        self._watch = FolderWatch(src, self._something_came)
        self._looking = Looking(self.control, self._backlog, lock=self._lock, watch=self._watch, looked=self._looked)
        self._thread = threading.Thread(target=self._run, name=f"lane-{src.name}")

    # -- called by other threads

    def start(self) -> None:
        """Take the scratch folder and begin.

        Raises:
            PreflightError: another mover has it.
            FormatError: it is not ours to use.
            OSError: it cannot be made.
        """
        self._lock.acquire()
        self._name.claim()
        self._registry = Registry(self.control, self._destination, self.mover_id)
        self._recovery = Recovery(
            self._destination, self._registry, self.mover_id, wait=self._turn_and_wait, stopping=self._stop.is_set
        )
        self._heartbeat = Heartbeat(self.control, self._config, self.mover_id, gauges=lambda: self.gauges)
        self._heartbeat.start()
        self._thread.start()

    def request_stop(self) -> None:
        """Finish what is in hand and end."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; True when it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def mover_id(self) -> str:
        """The name under which this lane writes, for good once it has started."""
        return self._name.text

    @property
    def state(self) -> MoverState | None:
        """What the last heartbeat said; None before the first."""
        return self._heartbeat.state

    def summary(self) -> str:
        """One line: what was moved and what waits."""
        return f"{self.control.scratch}: {self.gauges.summary()}"

    def _something_came(self) -> None:
        self._looking.again()
        self._wake.set()

    def _looked(self) -> None:
        self._recovery.begin()

    # -- the loop

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error
        finally:
            self.gauges = replace(self.gauges, stopping=True)
            self._watch.stop()
            self._registry.forget_books()
            self._name.release()
            self._heartbeat.stop()
            self._lock.release()

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._heartbeat.check()
            self.gauges = replace(self.gauges, turned_at_s=time.monotonic())
            self._collect()
            if self._stop.is_set():
                self._finish()
                return
            fresh = self._looking.look_if_due()
            if fresh:
                self._check_destination()
            if self._recovered():
                self._dispatch()
            self._publish()
            if self._config.once:
                if self._drained(fresh=fresh):
                    return
                if not len(self._backlog):
                    self._looking.again()  # one more look, at once

    def _pause_s(self) -> float:
        due = self._looking.due_s()
        retry_at_s = self._backlog.next_retry_s()
        if self._trouble:
            if len(self._backlog) and not self._backlog.in_hand:
                due = min(due, max(self._trouble.retry_at_s, retry_at_s or 0.0))
        elif retry_at_s is not None:
            due = min(due, retry_at_s)
        return max(_LEAST_PAUSE_S, due - time.monotonic())

    def _finish(self) -> None:
        self.gauges = replace(self.gauges, stopping=True)
        for part in self._workers.cancel_waiting():
            self._backlog.give_back(part, retry_at_s=0.0)
        while self._backlog.in_hand:
            self._wake.wait(0.2)
            self._wake.clear()
            self._collect()
        self._publish()

    def _drained(self, *, fresh: bool) -> bool:
        if self._backlog.in_hand:
            return False
        if self._trouble:
            self.unmoved += len(self._backlog)
            return True
        if fresh and self._looking.undeletable.reason and not len(self._backlog):
            self.unmoved += len(self._looking.undeletable)
            return True
        left = len(self._backlog) or self._looking.suspects or (self._recovery.begun and not self._recovery.done)
        return fresh and not left

    def _check_destination(self) -> None:
        at_s = time.monotonic()
        if at_s < self._checked_at_s + SCAN_S or (self._trouble and len(self._backlog)):
            return  # in trouble the next part tried will tell
        self._checked_at_s = at_s
        try:
            self._destination.check()
        except OSError as error:
            self._hold(error)
        else:
            self._trouble.end()

    def _hold(self, error: OSError) -> None:
        if self._trouble.begin(error):
            self._registry.forget_books()
            self._name.release()
            self._recovery.forget()
        self._publish()

    # -- handing out

    def _recovered(self) -> bool:
        """Clean up and adopt what an earlier life left in the destination; True once that is done."""
        if not self._recovery.begun or not self._trouble.may_try(time.monotonic()):
            return False
        try:
            self._recovery.go_on()
        except SourceError as error:
            _log.warning("cannot read %s", error)
        except OSError as error:
            self._hold(error)
        return self._recovery.done

    def _turn_and_wait(self, wait_s: float) -> None:
        self.gauges = replace(self.gauges, turned_at_s=time.monotonic())
        self._stop.wait(wait_s)

    def _loaded_books(self, run: str) -> Books | None:
        return self._registry.loaded_books_of(run, self._backlog.names)

    def _dispatch(self) -> None:
        at_s = time.monotonic()
        if self._trouble and (self._backlog.in_hand or not self._trouble.may_try(at_s)):
            return
        while (part := self._backlog.take(at_s)) is not None:
            try:
                task = self._task(part)
            except Elsewhere as error:
                self._failed(part, error)
                continue
            except (SourceError, OSError) as error:
                self._failed(part, error)
                return
            part.trial = bool(self._trouble)
            self._workers.submit(part, task)
            if self._trouble:
                return  # one part tries the destination

    def _task(self, part: Waiting) -> Task:
        name = part.name
        books = self._loaded_books(name.rid.run)
        return Task(
            source=self.control.scratch / str(name),
            name=name,
            destination=self._destination,
            paths=None if books is None else books.paths,
            codec=self._choice.codec,
            mover_id=self.mover_id,
            settled=part.settling is not None and time.monotonic() - part.settling[1] >= SETTLE_S,
            known=None if books is None else books.known(name),
            reference=None if books is None else books.reference(name),
            expected=None if books is None else books.info(),
            pace=self._shared.wait_for_pace,
            meter=self._shared.meter,
            find_line=None if books is None else books.find,
        )

    # -- taking back

    def _collect(self) -> None:
        done: list[tuple[Waiting, Outcome]] = []
        for result in self._workers.results():
            if result.outcome is not None:
                done.append((result.part, result.outcome))
            elif result.error is not None:
                self._failed(result.part, result.error)
        if done:
            self._commit(done)
            self._publish()

    def _failed(self, part: Waiting, error: Exception) -> None:
        at_s = time.monotonic()
        match error:
            case Elsewhere():  # said once for the run
                self.unmoved += 1
                self._leave_alone(part)
            case LeftAlone():
                self._leave_alone(part, f"it {error}")
            case SourceChanged():
                self._settle(part, at_s)
            case SourceError():
                part.attempts += 1
                if part.attempts >= _READ_ATTEMPTS:
                    self.unmoved += 1
                    self._leave_alone(part, f"it cannot be read: {error}")
                else:
                    self._backlog.give_back(part, retry_at_s=at_s + _READ_RETRY_S)
            case OSError():
                self._hold(error)
                # Later than the next try, so that another part makes it: the fault may be this one's own.
                self._backlog.give_back(part, retry_at_s=self._trouble.retry_at_s + 0.1)
            case _:
                raise error

    def _leave_alone(self, part: Waiting, why: str = "") -> None:
        with suppress(FileNotFoundError):
            self._looking.left_alone.add(str(part.name), os.lstat(self.control.scratch / str(part.name)))
            if why:
                _log.warning("leaving %s alone: %s", part.name, why)
        self._backlog.done(part)

    def _settle(self, part: Waiting, at_s: float) -> None:
        try:
            looks = Identity.of(os.lstat(self.control.scratch / str(part.name)))
        except FileNotFoundError:
            self._backlog.done(part)
            return
        if part.settling is None or part.settling[0] != looks:
            part.settling = (looks, at_s)
        self._backlog.give_back(part, retry_at_s=max(at_s + 0.1, part.settling[1] + SETTLE_S))

    def _commit(self, done: list[tuple[Waiting, Outcome]]) -> None:
        groups: dict[Books | None, list[tuple[Waiting, Outcome]]] = defaultdict(list)
        for part, outcome in done:
            books = None if not outcome.claimed else self._registry.books_of(part.name.rid.run)
            groups[books].append((part, outcome))
        for books, group in groups.items():
            try:
                self._name.ensure()
                if books is not None:
                    books.commit([outcome.line for _, outcome in group if outcome.line is not None])
            except OSError as error:
                self._hold(error)
                for part, _ in group:
                    self._backlog.give_back(part, retry_at_s=0.0)
                continue
            if any(part.trial for part, _ in group):
                self._trouble.end()
            for part, outcome in group:
                self._unlink(part, outcome)
            self._count([outcome for _, outcome in group])
            if books is not None:
                books.forget(part.name for part, _ in group)

    def _unlink(self, part: Waiting, outcome: Outcome) -> None:
        if outcome.quarantined:
            _log.warning("quarantined %s: %s", part.name, outcome.note)
        else:
            _log.debug("%s %s", outcome.note, part.name)
        self._looking.undeletable.delete(str(part.name), outcome.identity)
        self._backlog.done(part)

    def _count(self, moved: Sequence[Outcome]) -> None:
        self.gauges = replace(
            self.gauges,
            moved_parts=self.gauges.moved_parts + len(moved),
            moved_bytes=self.gauges.moved_bytes + sum(outcome.identity.size_bytes for outcome in moved),
            stored_bytes=self.gauges.stored_bytes
            + sum(outcome.line.stored_bytes for outcome in moved if outcome.line is not None),
            quarantined_parts=self.gauges.quarantined_parts + sum(outcome.quarantined for outcome in moved),
            last_progress_s=now_s(),
        )

    def _publish(self) -> None:
        self.gauges = replace(
            self.gauges,
            backlog_parts=len(self._backlog),
            backlog_bytes=self._backlog.size_bytes,
            left_alone_parts=len(self._looking.left_alone) + len(self._looking.undeletable),
            codec=self._choice.codec.name,
            trouble=self._trouble.reason or self._looking.undeletable.reason,
        )
        at_s = time.monotonic()
        state = self._heartbeat.state
        if state is not None:
            self._choice.look(at_s, backlog_bytes=self._backlog.size_bytes, limit_bytes=state.limit_bytes)
        if at_s - self._reported_at_s >= _REPORT_S and self.gauges.moved_parts != self._reported_parts:
            _log.info("%s", self.summary())
            self._reported_at_s, self._reported_parts = at_s, self.gauges.moved_parts
