"""Makes stored files durable in groups: fsync of all side by side, then the renames, then each folder once.

A disk takes about as long to sync thirty small files as one. So workers leave their files under temporary names and go
on, and one thread syncs whatever has come together while it was busy with the group before: a lone file waits for
nobody, a flood is synced by the dozen. Only where the disk takes its time do other threads help.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hs_formats.durable import fsync_folder
from hs_mover.meter import Meter
from hs_mover.task import Outcome
from hs_mover.written import Written, drop, put_in_place, sync_file

__all__ = ["MAX_GROUP", "Done", "Syncer"]

Done = Callable[[Exception | None], None]
"""Called from the syncing thread: None when the outcome is durable, else why it is not."""

MAX_GROUP = 256
_SIDE_BY_SIDE = 8
_QUICK_S = 0.00025
"""Calls that take no longer are made one after the other: to hand one to another thread costs about as much."""
_GRACE_CALLS = 4
_LINGER_S = 0.02
"""While parts keep coming, so long is waited for more of them: a group costs about as much as a file in it."""


class Syncer:
    """One thread, shared by all lanes, between `start` and `close`."""

    def __init__(self, meter: Meter, *, max_group: int = MAX_GROUP) -> None:
        self._meter = meter
        self._max_group = max_group
        self._queue: queue.SimpleQueue[tuple[Outcome, Done] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, thread_name_prefix="sync")
        self._thread = threading.Thread(target=self._run, name="syncer")
        self._flood = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Finish what was submitted, then end."""
        self._queue.put(None)
        self._thread.join()
        self._pool.shutdown()

    def submit(self, outcome: Outcome, done: Done) -> None:
        """Make `outcome`'s file and folders durable, then call `done`. May be called from any thread."""
        self._queue.put((outcome, done))

    def _run(self) -> None:
        while True:
            group, ended = self._gather()
            if group:
                with self._meter.syncing():
                    errors = self._sync([outcome for outcome, _ in group])
                for (_, done), error in zip(group, errors, strict=True):
                    done(error)
            if ended:
                return

    def _gather(self) -> tuple[list[tuple[Outcome, Done]], bool]:
        group: list[tuple[Outcome, Done]] = []
        item = self._queue.get()
        if self._flood and item is not None:
            time.sleep(_LINGER_S)
        while item is not None and len(group) < self._max_group:
            group.append(item)
            if len(group) < self._max_group:
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
        self._flood = len(group) > 1
        return group, item is None

    def _sync(self, outcomes: Sequence[Outcome]) -> list[Exception | None]:
        errors = self._each(sync_file, [outcome.written for outcome in outcomes])
        for number, outcome in enumerate(outcomes):
            if errors[number] is None:
                errors[number] = _attempt(put_in_place, outcome.written)
            elif outcome.written is not None:
                drop(outcome.written)
        # A folder can only be synced once all that belongs into it has its name there.
        folders = list(
            dict.fromkeys(
                folder
                for outcome, error in zip(outcomes, errors, strict=True)
                if error is None
                for folder in outcome.folders
            )
        )
        failed = dict(zip(folders, self._each(fsync_folder, folders), strict=True))
        return [
            error or next((failed[folder] for folder in outcome.folders if failed.get(folder) is not None), None)
            for outcome, error in zip(outcomes, errors, strict=True)
        ]

    def _each(self, call: Callable[..., None], items: Sequence[Written | Path | None]) -> list[Exception | None]:
        """`call` for each item: by this thread as long as that is quick, the rest by all threads side by side."""
        found: list[Exception | None] = []
        began_s = time.monotonic()
        for item in items:
            found.append(_attempt(call, item))
            if time.monotonic() - began_s > _QUICK_S * (len(found) + _GRACE_CALLS):
                break
        left = items[len(found) :]
        rest: list[Exception | None] = [None] * len(left)

        def share(first: int) -> None:
            for number in range(first, len(left), _SIDE_BY_SIDE):
                rest[number] = _attempt(call, left[number])

        list(self._pool.map(share, range(min(_SIDE_BY_SIDE, len(left)))))
        return found + rest


def _attempt(call: Callable[..., None], item: Written | Path | None) -> Exception | None:
    if item is None:
        return None
    try:
        call(item)
    except Exception as error:  # noqa: BLE001 - the lane looks at it
        return error
    return None
