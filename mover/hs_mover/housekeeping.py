"""What lies in scratch beside whole parts: temporaries of dead launches, files that are not ours, foreign names."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

from hs_formats.control import ControlFolder
from hs_mover.task import Identity

__all__ = ["ForeignNames", "LeftAloneFiles", "StaleTemporaries"]

_log = logging.getLogger(__name__)

STALE_S = 2.0
"""A temporary must look dead and unchanged for this long: its launch may be about to publish its marker."""

_MAX_NAMED = 20


class ForeignNames:
    """Names that do not parse: left alone, each named once in the log, the first few at least."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def add(self, names: Collection[str]) -> None:
        """Take note of names not seen before."""
        for name in sorted(names):
            if len(self.seen) < _MAX_NAMED:
                _log.info("leaving %r alone: not the name of a part", name)
            elif len(self.seen) == _MAX_NAMED:
                _log.info("leaving more such names alone, without naming them")
            self.seen.add(name)


class LeftAloneFiles:
    """Files that have a part's name and cannot be moved, until they are replaced by others."""

    def __init__(self) -> None:
        self._files: dict[str, Identity] = {}

    def add(self, file_name: str, found: os.stat_result) -> None:
        """Do not try this file again."""
        self._files[file_name] = Identity.of(found)

    def holds(self, file_name: str, found: os.stat_result) -> bool:
        """This very file is to be left alone."""
        return self._files.get(file_name) == Identity.of(found)

    def keep_only(self, present: Collection[str]) -> None:
        """Forget files that are gone."""
        if self._files:
            self._files = {name: known for name, known in self._files.items() if name in present}


class StaleTemporaries:
    """Removes what dead launches were writing."""

    def __init__(self, control: ControlFolder) -> None:
        self._control = control
        self._suspects: dict[str, tuple[Identity, float]] = {}

    @property
    def suspects(self) -> int:
        """Temporaries that will be removed if they stay as they are."""
        return len(self._suspects)

    def sweep(self, temporaries: Mapping[str, str]) -> None:
        """Look at the temporaries in scratch, file name → launch nonce.

        Raises:
            OSError: scratch cannot be written.
        """
        if not temporaries:
            self._suspects.clear()
            return
        live = {marker.nonce for marker in self._control.live_markers()}
        at_s, before = time.monotonic(), self._suspects
        self._suspects = {}
        for file_name, nonce in temporaries.items():
            if nonce in live:
                continue
            path = self._control.scratch / file_name
            with suppress(FileNotFoundError):
                found = os.lstat(path)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    continue
                looks = Identity.of(found)
                known, since_s = before.get(file_name, (looks, at_s))
                if known != looks:
                    since_s = at_s
                if at_s - since_s >= STALE_S:
                    path.unlink()
                    _log.info("removed %s: its launch is dead", file_name)
                else:
                    self._suspects[file_name] = (looks, since_s)
