"""Wakes the mover when something appears in scratch. Only a hint: the scan every second decides what is there.

So nothing here has to be complete. An overflow of the kernel's queue loses events and nothing else; where inotify is
refused or its threads die the mover says so once and goes on by scanning alone.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path

from watchdog.events import FileClosedEvent, FileMovedEvent, FileSystemEvent, FileSystemEventHandler
from watchdog.observers.inotify import InotifyObserver

__all__ = ["FolderWatch"]

_log = logging.getLogger(__name__)

_RETRY_S = 30.0
_REMEDY = {
    errno.ENOSPC: "the user's inotify watches are used up; raise sysctl fs.inotify.max_user_watches",
    errno.EMFILE: "the user's inotify instances are used up; raise sysctl fs.inotify.max_user_instances",
}


class _Handler(FileSystemEventHandler):
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def dispatch(self, event: FileSystemEvent) -> None:
        try:
            self._wake()
        except Exception:  # noqa: BLE001 - an exception here would end the observer's thread for good
            _log.debug("wake-up failed for %r", event, exc_info=True)


class FolderWatch:
    """Calls `wake` after files were closed or moved in `folder`, while it can. Not thread-safe; `wake` is called from
    another thread."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        self.folder = folder
        self._handler = _Handler(wake)
        self._observer: InotifyObserver | None = None
        self._inode = 0
        self._retry_at_s = 0.0
        self._said = ""

    @property
    def active(self) -> bool:
        """Events can be expected."""
        return self._observer is not None

    def ensure(self) -> None:
        """Start watching, or start again where a thread died or the folder is another one. Never raises."""
        observer = self._observer
        if observer is not None:
            if self._healthy(observer):
                return
            _log.warning("the watch on %s ended; starting it again", self.folder)
            self.stop()
            self._retry_at_s = 0.0
        if time.monotonic() >= self._retry_at_s:
            self._start()

    def stop(self) -> None:
        """End the observer's threads."""
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.unschedule_all()
            observer.stop()
            observer.join(5.0)

    def _healthy(self, observer: InotifyObserver) -> bool:
        emitters = observer.emitters
        if not observer.is_alive() or not emitters or not all(emitter.is_alive() for emitter in emitters):
            return False
        try:
            return self.folder.stat().st_ino == self._inode
        except OSError:
            return False

    def _start(self) -> None:
        self._retry_at_s = time.monotonic() + _RETRY_S
        # Without full events a file renamed in from elsewhere is reported as created, which the filter leaves out.
        try:
            observer = InotifyObserver(generate_full_events=True)
            self._inode = self.folder.stat().st_ino
            observer.schedule(
                self._handler,
                str(self.folder),
                recursive=False,
                event_filter=[FileClosedEvent, FileMovedEvent],
            )
            observer.start()
        except OSError as error:
            said = _REMEDY.get(error.errno or 0, str(error))
            if said != self._said:
                self._said = said
                _log.warning("no file events from %s: %s; scanning every second instead", self.folder, said)
            return
        if self._said:
            _log.info("file events from %s again", self.folder)
            self._said = ""
        self._observer = observer
