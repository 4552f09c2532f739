"""The moving thread of one scratch folder: scan, hand parts to workers, commit what they finished, unlink.

Everything that several threads would share is owned by this thread; workers get a task and give back a result.
"""

from __future__ import annotations

import logging
import os
import queue
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hs_formats.control import ControlFolder, now_s
from hs_formats.dataset import check_dataset_name
from hs_formats.durable import fsync_folder
from hs_formats.errors import FormatError
from hs_formats.names import PartName
from hs_formats.stored import CODECS
from hs_mover.backlog import Backlog, Waiting
from hs_mover.books import Books
from hs_mover.checks import SourceChanged
from hs_mover.config import MoverConfig, mover_id
from hs_mover.destination import Destination, explain
from hs_mover.heartbeat import Gauges, Heartbeat
from hs_mover.lock import ScratchLock
from hs_mover.pace import Pace
from hs_mover.recover import recover_run, sweep_unclaimed
from hs_mover.scan import list_scratch
from hs_mover.store import Identity, Known, LeftAlone, Outcome, SourceError, Task, run_task
from hs_mover.watch import FolderWatch

__all__ = ["Lane"]

_log = logging.getLogger(__name__)

SCAN_S = 1.0
"""Longest time between two looks at scratch."""

SETTLE_S = 2.0
"""A file that is no whole part is bad once it has not changed for this long; its writer may not know of renames."""

_FULL_SPEED_S = 0.02
_SCAN_SHARE = 10  # a scan takes at most a tenth of the time
_BUDGET_BYTES = 1 << 30
_BACKOFF_S = (0.5, 8.0)
_SOURCE_RETRY_S = 2.0
_REPORT_S = 60.0
_MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class _Result:
    part: Waiting
    outcome: Outcome | None = None
    error: Exception | None = None


class Lane:
    """Moves the parts of one scratch folder until told to stop, or with ``--once`` until nothing is left."""

    def __init__(
        self,
        src: Path,
        config: MoverConfig,
        destination: Destination,
        *,
        pool: ThreadPoolExecutor,
        pace: Pace,
        budget_share: int = 1,
    ) -> None:
        self.control = ControlFolder(src)
        self.mover_id = mover_id(src)
        self.error: BaseException | None = None
        self.unmoved = 0
        self._config = config
        self._destination = destination
        self._pool = pool
        self._pace = pace
        self._codec = CODECS[config.codec]
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        self._futures: dict[Future[None], Waiting] = {}
        self._backlog = Backlog(budget_bytes=_BUDGET_BYTES // budget_share, budget_parts=2 * config.threads)
        self._books: dict[str, Books] = {}
        self._runs: dict[str, str | None] = {}
        self._unrecovered: list[str] | None = None
        self._left_alone: dict[str, Identity] = {}
        self._foreign: set[str] = set()
        self._stale: dict[str, tuple[Identity, float]] = {}
        self._trouble = ""
        self._trouble_since_s = 0.0
        self._trouble_retry_s = 0.0
        self._backoff_s = _BACKOFF_S[0]
        self._scanned_at_s = float("-inf")
        self._scan_cost_s = 0.0
        self._dirty = True
        self._reported_at_s = time.monotonic()
        self._reported_parts = 0
        self.gauges = Gauges(last_progress_s=now_s())
        self._lock = ScratchLock(self.control)
        self._heartbeat = Heartbeat(self.control, config, self.mover_id, gauges=lambda: self.gauges)
        self._watch = FolderWatch(src, self._wake_for_event)
        self._thread = threading.Thread(target=self._run, name=f"lane-{src.name}")

    # -- from other threads

    def start(self) -> None:
        """Take the scratch folder and begin.

        Raises:
            PreflightError: another mover has it.
        """
        self._lock.acquire()
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

    def _wake_for_event(self) -> None:
        self._dirty = True
        self._wake.set()

    # -- the loop

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
            self.error = error
        finally:
            self.gauges = replace(self.gauges, stopping=True)
            self._watch.stop()
            for books in self._books.values():
                books.close()
            self._heartbeat.stop()
            self._lock.release()

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            self._collect()
            if self._stop.is_set():
                self._finish()
                return
            fresh = self._scan_if_due()
            if self._recover():
                self._dispatch()
            self._publish()
            if self._config.once and self._drained(fresh=fresh):
                return

    def _pause_s(self) -> float:
        now_s = time.monotonic()
        due = self._scan_due_s() if self._dirty else self._scanned_at_s + SCAN_S
        retry = self._backlog.next_retry_s()
        if retry is not None and not self._trouble:
            due = min(due, retry)
        return max(0.0, due - now_s)

    def _scan_due_s(self) -> float:
        return self._scanned_at_s + max(_FULL_SPEED_S, self._scan_cost_s * _SCAN_SHARE)

    def _finish(self) -> None:
        self.gauges = replace(self.gauges, stopping=True)
        for future in list(self._futures):
            if future.cancel():
                self._backlog.give_back(self._futures.pop(future), retry_at_s=0.0)
        while self._backlog.in_hand:
            self._wake.wait(0.2)
            self._wake.clear()
            self._collect()
        self._publish()

    def _drained(self, *, fresh: bool) -> bool:
        if self._backlog.in_hand:
            return False
        if self._trouble:
            self.unmoved = len(self._backlog)
            return True
        return fresh and not len(self._backlog) and not self._unrecovered

    # -- scanning

    def _scan_if_due(self) -> bool:
        at_s = time.monotonic()
        if at_s < self._scanned_at_s + SCAN_S and not (self._dirty and at_s >= self._scan_due_s()):
            return False
        self._dirty = False
        try:
            self._scan()
        except FileNotFoundError:
            self._scratch_gone()
        self._scanned_at_s = time.monotonic()
        self._scan_cost_s = self._scanned_at_s - at_s
        self._watch.ensure()
        self._check_destination()
        return True

    def _scan(self) -> None:
        folder = self.control.scratch
        listing = list_scratch(folder, known=self._backlog.names, known_foreign=self._foreign)
        self._backlog.vanish(listing.present)
        for file_name, name in listing.parts.items():
            try:
                found = os.lstat(folder / file_name)
            except FileNotFoundError:
                continue
            if self._left_alone.get(file_name) == Identity.of(found):
                continue
            self._backlog.add(Waiting(name, found.st_size if stat.S_ISREG(found.st_mode) else 0, found.st_mtime_ns))
        self._left_alone = {name: known for name, known in self._left_alone.items() if name in listing.present}
        self._name_foreign(listing.foreign)
        self._remove_stale(listing.temporaries)
        if self._unrecovered is None:
            self._unrecovered = sorted(path.stem for path in self.control.runs.glob("*.json"))
        self._publish()

    def _scratch_gone(self) -> None:
        """Scratch was removed: make it and the control folder again, and take the lock of the new one."""
        _log.warning("%s is gone; making it again", self.control.scratch)
        self._backlog.vanish(())
        self._lock.release()
        try:
            self._lock.acquire()
        except (OSError, FormatError) as error:
            _log.warning("cannot make %s: %s", self.control.scratch, error)

    def _name_foreign(self, names: set[str]) -> None:
        for name in sorted(names):
            if len(self._foreign) < _MAX_NAMED:
                _log.info("leaving %r alone: not the name of a part", name)
            elif len(self._foreign) == _MAX_NAMED:
                _log.info("leaving more such names alone; not naming them")
            self._foreign.add(name)

    def _remove_stale(self, temporaries: dict[str, str]) -> None:
        """Remove what dead launches were writing; a temporary must look dead twice, two seconds apart."""
        if not temporaries:
            self._stale.clear()
            return
        live = {marker.nonce for marker in self.control.live_markers()}
        at_s, seen = time.monotonic(), self._stale
        self._stale = {}
        for file_name, nonce in temporaries.items():
            path = self.control.scratch / file_name
            if nonce in live:
                continue
            try:
                found = os.lstat(path)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    continue
                now, (before, since_s) = Identity.of(found), seen.get(file_name, (None, at_s))
                if before == now and at_s - since_s >= SETTLE_S:
                    path.unlink()
                    _log.info("removed %s: its launch is dead", file_name)
                else:
                    self._stale[file_name] = (now, since_s if before == now else at_s)
            except FileNotFoundError:
                continue

    # -- the destination's troubles

    def _check_destination(self) -> None:
        if self._trouble and len(self._backlog):
            return  # the next part tried will tell
        try:
            self._destination.check()
        except OSError as error:
            self._hold(error)
        else:
            self._go_on()

    def _hold(self, error: OSError) -> None:
        reason = explain(error, self._destination.root)
        at_s = time.monotonic()
        if not self._trouble:
            self._trouble_since_s, self._backoff_s = at_s, _BACKOFF_S[0]
            _log.warning("holding: %s; sources are kept", reason)
        else:
            self._backoff_s = min(self._backoff_s * 2, _BACKOFF_S[1])
        self._trouble = reason
        self._trouble_retry_s = at_s + self._backoff_s
        for books in self._books.values():
            books.close()
        self._books.clear()
        self._publish()

    def _go_on(self) -> None:
        if self._trouble:
            _log.info(
                "going on after %.0f s: %s works again",
                time.monotonic() - self._trouble_since_s,
                self._destination.root,
            )
            self._trouble = ""

    # -- work

    def _recover(self) -> bool:
        """Adopt and clean up what an earlier life left in the destination; True when that is done."""
        if self._unrecovered is None:
            return False
        if self._trouble and time.monotonic() < self._trouble_retry_s:
            return False
        try:
            if self._unrecovered:
                sweep_unclaimed(self._destination, self.mover_id)
            while self._unrecovered and not self._stop.is_set():
                run = self._unrecovered[-1]
                dataset = self._dataset_of(run)
                if dataset is not None:
                    recover_run(self._books_of(dataset), run, self.mover_id)
                self._unrecovered.pop()
        except OSError as error:
            self._hold(error)
        return not self._unrecovered

    def _dispatch(self) -> None:
        at_s = time.monotonic()
        if self._trouble and (self._backlog.in_hand or at_s < self._trouble_retry_s):
            return
        while (part := self._backlog.take(at_s)) is not None:
            try:
                task = self._task(part)
            except OSError as error:
                self._backlog.give_back(part, retry_at_s=0.0)
                self._hold(error)
                return
            future = self._pool.submit(self._work, part, task)
            self._futures[future] = part
            if self._trouble:
                return  # one part tries the destination

    def _task(self, part: Waiting) -> Task:
        name = part.name
        dataset = self._dataset_of(name.rid.run)
        books = None if dataset is None else self._books_of(dataset)
        if books is not None:
            books.load_run(name.rid.run)
        return Task(
            source=self.control.scratch / str(name),
            name=name,
            destination=self._destination,
            paths=None if books is None else books.paths,
            codec=self._codec,
            mover_id=self.mover_id,
            settled=part.settling is not None and time.monotonic() - part.settling[1] >= SETTLE_S,
            known=None if books is None else books.known(name),
            reference=None if books is None else books.reference(name),
            expected=None if books is None else books.info(),
            pace=self._pace.take,
            find_line=_nothing if books is None else books.find,
        )

    def _work(self, part: Waiting, task: Task) -> None:
        try:
            result = _Result(part, outcome=run_task(task))
        except Exception as error:  # noqa: BLE001 - looked at in the lane's thread
            result = _Result(part, error=error)
        self._results.put(result)
        self._wake.set()

    def _dataset_of(self, run: str) -> str | None:
        if run not in self._runs:
            state = self.control.read_run(run)
            dataset: str | None = None
            if state is not None:
                try:
                    dataset = check_dataset_name(state.dataset)
                except FormatError as error:
                    _log.warning("run %s: %s", run, error)
            if dataset is None:
                _log.warning(
                    "run %s is registered by no client here: its parts go to %s", run, self._destination.unclaimed(run)
                )
            self._runs[run] = dataset
        return self._runs[run]

    def _books_of(self, dataset: str) -> Books:
        books = self._books.get(dataset)
        if books is None:
            paths = self._destination.dataset(dataset)
            books = self._books[dataset] = Books(paths, self.mover_id, make=self._destination.make)
        return books

    # -- results

    def _collect(self) -> None:
        done: list[tuple[Waiting, Outcome]] = []
        while True:
            try:
                result = self._results.get_nowait()
            except queue.Empty:
                break
            if result.outcome is not None:
                done.append((result.part, result.outcome))
            elif result.error is not None:
                self._failed(result.part, result.error)
        self._futures = {future: part for future, part in self._futures.items() if not future.done()}
        if done:
            self._commit(done)
            self._publish()

    def _failed(self, part: Waiting, error: Exception) -> None:
        at_s = time.monotonic()
        path = self.control.scratch / str(part.name)
        match error:
            case LeftAlone():
                _log.warning("leaving %s alone: it %s", part.name, error)
                with suppress(FileNotFoundError):
                    self._left_alone[str(part.name)] = Identity.of(os.lstat(path))
                self._backlog.done(part)
            case SourceChanged():
                self._settle(part, path, at_s)
            case SourceError():
                if path.exists():
                    _log.warning("cannot read %s: %s", part.name, error)
                    self._backlog.give_back(part, retry_at_s=at_s + _SOURCE_RETRY_S)
                else:
                    self._backlog.done(part)
            case OSError():
                self._backlog.give_back(part, retry_at_s=0.0)
                self._hold(error)
            case _:
                raise error

    def _settle(self, part: Waiting, path: Path, at_s: float) -> None:
        try:
            looks = Identity.of(os.lstat(path))
        except FileNotFoundError:
            self._backlog.done(part)
            return
        if part.settling is None or part.settling[0] != looks:
            part.settling = (looks, at_s)
        wait_s = max(0.1, part.settling[1] + SETTLE_S - at_s)
        self._backlog.give_back(part, retry_at_s=at_s + wait_s)

    def _commit(self, done: list[tuple[Waiting, Outcome]]) -> None:
        groups: dict[str | None, list[tuple[Waiting, Outcome]]] = defaultdict(list)
        for part, outcome in done:
            groups[self._dataset_of(part.name.rid.run)].append((part, outcome))
        for dataset, group in groups.items():
            try:
                if dataset is None:
                    _sync_folders(outcome for _, outcome in group)
                else:
                    self._books_of(dataset).commit([outcome for _, outcome in group])
            except OSError as error:
                for part, _ in group:
                    self._backlog.give_back(part, retry_at_s=0.0)
                self._hold(error)
                continue
            self._go_on()
            for part, outcome in group:
                self._unlink(part, outcome)
            if dataset is not None:
                self._books_of(dataset).forget(part.name for part, _ in group)

    def _unlink(self, part: Waiting, outcome: Outcome) -> None:
        path = self.control.scratch / str(part.name)
        line = outcome.line
        if line is not None and line.status == "quarantined":
            _log.warning("quarantined %s: %s", part.name, line.reason)
        else:
            _log.debug("%s %s", outcome.note, part.name)
        try:
            if Identity.of(os.lstat(path)) == outcome.identity:
                path.unlink()
        except FileNotFoundError:
            pass
        self._backlog.done(part)
        self.gauges = replace(
            self.gauges,
            moved_parts=self.gauges.moved_parts + 1,
            moved_bytes=self.gauges.moved_bytes + outcome.identity.size_bytes,
            stored_bytes=self.gauges.stored_bytes + (line.stored_bytes if line is not None else 0),
            last_progress_s=now_s(),
        )

    def _publish(self) -> None:
        self.gauges = replace(
            self.gauges,
            backlog_parts=len(self._backlog),
            backlog_bytes=self._backlog.size_bytes,
            trouble=self._trouble,
        )
        at_s = time.monotonic()
        if at_s - self._reported_at_s >= _REPORT_S and self.gauges.moved_parts != self._reported_parts:
            _log.info("%s", self.summary())
            self._reported_at_s, self._reported_parts = at_s, self.gauges.moved_parts

    def summary(self) -> str:
        """One line: what was moved and what waits."""
        g = self.gauges
        return (
            f"{self.control.scratch}: {g.moved_parts} parts moved, {g.moved_bytes / 1e6:.1f} MB "
            f"({g.stored_bytes / 1e6:.1f} MB stored), {g.backlog_parts} waiting"
        )


def _nothing(name: PartName) -> Known | None:
    del name
    return None


def _sync_folders(outcomes: Iterable[Outcome]) -> None:
    for folder in {folder for outcome in outcomes for folder in outcome.folders}:
        fsync_folder(folder)
