"""What lies in scratch beside whole parts: temporaries of dead launches, files that are not ours, foreign names."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from hs_formats.control import ControlFolder
from hs_mover.task import Identity

__all__ = ["ForeignNames", "LeftAloneFiles", "StaleTemporaries", "Undeletable"]

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

    def __len__(self) -> int:
        return len(self._files)

    def holds(self, file_name: str, found: os.stat_result) -> bool:
        """This very file is to be left alone."""
        return self._files.get(file_name) == Identity.of(found)

    def keep_only(self, present: Collection[str]) -> None:
        """Forget files that are gone."""
        if self._files:
            self._files = {name: known for name, known in self._files.items() if name in present}


class Undeletable:
    """Parts that are stored and noted, and whose source cannot be deleted just now. Tried again at every look."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._files: dict[str, Identity] = {}
        self.reason = ""

    def __len__(self) -> int:
        return len(self._files)

    def holds(self, file_name: str, found: os.stat_result) -> bool:
        """This very file needs nothing but to be deleted."""
        return self._files.get(file_name) == Identity.of(found)

    def delete(self, file_name: str, identity: Identity) -> None:
        """Delete the file, unless another one has taken its name."""
        path = os.path.join(self._scratch, file_name)  # for each part, so no Path
        self._files.pop(file_name, None)
        try:
            with suppress(FileNotFoundError):
                if Identity.of(os.lstat(path)) == identity:
                    os.unlink(path)
        except OSError as error:
            self._files[file_name] = identity
            if not self.reason:
                self.reason = f"stored parts cannot be deleted from scratch: {error.strerror}: {path}"
                _log.warning("holding: %s; each look tries again", self.reason)

    def again(self) -> None:
        """Try all of them."""
        for file_name, identity in list(self._files.items()):
            self.delete(file_name, identity)
        if self.reason and not self._files:
            _log.info("going on: parts can be deleted from %s again", self._scratch)
            self.reason = ""


class StaleTemporaries:
    """Removes what dead launches were writing."""

    def __init__(self, control: ControlFolder) -> None:
        self._control = control
        self._suspects: dict[str, tuple[Identity, float]] = {}
        self._refused: set[str] = set()

    @property
    def suspects(self) -> int:
        """Temporaries that will be removed if they stay as they are."""
        return len(self._suspects)

    def sweep(self, temporaries: Mapping[str, str]) -> None:
        """Look at the temporaries in scratch, file name → launch nonce.

        Raises:
            OSError: scratch cannot be looked at.
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
                if at_s - since_s < STALE_S:
                    self._suspects[file_name] = (looks, since_s)
                elif self._unlink(path):
                    _log.info("removed %s: its launch is dead", file_name)

    def _unlink(self, path: Path) -> bool:
        try:
            path.unlink()
        except PermissionError as error:
            if path.name not in self._refused:
                self._refused.add(path.name)
                _log.warning("cannot delete %s, of a dead launch: %s", path, error.strerror)
            return False
        return True
