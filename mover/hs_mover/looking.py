"""Looks at one scratch folder, when due: new parts go into the backlog, what is not a part is dealt with."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from hs_formats.control import ControlFolder
from hs_formats.errors import FormatError, PreflightError
from hs_mover.backlog import Backlog, Waiting
from hs_mover.housekeeping import ForeignNames, LeftAloneFiles, StaleTemporaries, Undeletable
from hs_mover.lock import ScratchLock
from hs_mover.scan import list_scratch
from hs_mover.watch import FolderWatch

__all__ = ["SCAN_S", "Looking"]

_log = logging.getLogger(__name__)

SCAN_S = 1.0
"""Longest time between two looks at scratch."""

_SCAN_PAUSE_S = 0.02
_SCAN_SHARE = 10  # scanning takes at most a tenth of the time, however many files there are


class Looking:
    """Owned by the moving thread; only `again` is called by others.

    Args:
        control: of the scratch folder.
        backlog: takes the parts.
        lock: that must be held for a look.
        watch: kept alive with each look.
        looked: called after each look that went well.

    Attributes:
        left_alone: files that have a part's name and are not tried.
        undeletable: parts that wait for nothing but to be deleted.
    """

    def __init__(
        self,
        control: ControlFolder,
        backlog: Backlog,
        *,
        lock: ScratchLock,
        watch: FolderWatch,
        looked: Callable[[], None],
    ) -> None:
        self.left_alone = LeftAloneFiles()
        self.undeletable = Undeletable(control.scratch)
        self._control = control
        self._backlog = backlog
        self._lock = lock
        self._watch = watch
        self._looked = looked
        self._foreign = ForeignNames()
        self._stale = StaleTemporaries(control)
        self._dirty = True
        self._at_s = float("-inf")
        self._cost_s = 0.0
        self._said = ""

    @property
    def suspects(self) -> int:
        """Temporaries that a later look may remove."""
        return self._stale.suspects

    def again(self) -> None:
        """Something has come: look as soon as that is not too often."""
        self._dirty = True

    def due_s(self) -> float:
        """When the next look is due, on the monotonic clock."""
        return self._earliest_s() if self._dirty else self._at_s + SCAN_S

    def _earliest_s(self) -> float:
        return self._at_s + max(_SCAN_PAUSE_S, self._cost_s * _SCAN_SHARE)

    def look_if_due(self) -> bool:
        """Look if it is time to; True if that was so.

        Raises:
            PreflightError: the scratch folder is another mover's now.
        """
        at_s = time.monotonic()
        if at_s < self._at_s + SCAN_S and not (self._dirty and at_s >= self._earliest_s()):
            return False
        self._dirty = False
        try:
            self._lock.ensure()
            self._look()
            self._looked()
        except PreflightError:
            raise
        except (FormatError, OSError) as error:
            if str(error) != self._said:
                _log.warning("cannot look into %s: %s", self._control.scratch, error)
            self._said = str(error)
        self._at_s = time.monotonic()
        self._cost_s = self._at_s - at_s
        self._watch.ensure()
        return True

    def _look(self) -> None:
        folder = self._control.scratch
        listing = list_scratch(folder, known=self._backlog.names, known_foreign=self._foreign.seen)
        self._backlog.vanish(listing.present)
        self.left_alone.keep_only(listing.present)
        self.undeletable.again()
        for file_name, name in listing.parts.items():
            with suppress(FileNotFoundError):
                found = os.lstat(folder / file_name)
                if not (self.left_alone.holds(file_name, found) or self.undeletable.holds(file_name, found)):
                    size_bytes = found.st_size if stat.S_ISREG(found.st_mode) else 0
                    self._backlog.add(Waiting(name, size_bytes, found.st_mtime_ns))
        self._foreign.add(listing.foreign)
        self._stale.sweep(listing.temporaries)
