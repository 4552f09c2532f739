"""One mover for each scratch folder: an flock on ``.hs/mover.lock`` for as long as the process lives."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

from hs_formats.control import ControlFolder, against_others
from hs_formats.errors import FormatError, PreflightError

__all__ = ["ScratchLock", "ScratchOpen", "ScratchTaken"]

_log = logging.getLogger(__name__)


class ScratchTaken(PreflightError):
    """another mover{who} runs on {scratch}: stop it first, or give this one another --src"""


class ScratchOpen(PreflightError):
    """scratch {scratch} is open to others (mode {mode:04o}): {remedy}"""


class ScratchLock:
    """Makes the control folder when it is not there, and locks it."""

    def __init__(self, control: ControlFolder) -> None:
        self._control = control
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ScratchTaken: another mover has it.
            ScratchOpen: other users may look into it, or put files there.
            FormatError: the folder is not ours to use.
            OSError: it cannot be made.
        """
        scratch = self._control.scratch
        with suppress(FileNotFoundError):  # before anything is put there
            found = scratch.lstat()
            remedy = against_others(scratch, found.st_mode)
            ours = found.st_uid == os.geteuid() or found.st_mode & stat.S_ISVTX
            if stat.S_ISDIR(found.st_mode) and ours and remedy is not None:  # `create` refuses all others
                raise ScratchOpen(scratch=scratch, mode=stat.S_IMODE(found.st_mode), remedy=remedy)
        self._control.create()
        path = self._control.mover_lock
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _holder(fd) or self._last_pid()
            os.close(fd)
            who = f" (pid {pid})" if pid else ""
            raise ScratchTaken(who=who, scratch=self._control.scratch) from None
        self._fd = fd

    def ensure(self) -> None:
        """Take the lock anew where scratch or its control folder was removed or replaced since.

        Raises:
            ScratchTaken: another mover was faster.
            FormatError: the folder is not ours to use.
            OSError: it cannot be made.
        """
        if self._fd >= 0:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(self._control.mover_lock), os.fstat(self._fd)):
                    return
            _log.warning("%s was removed or replaced; making it again", self._control.root)
            self.release()
        self.acquire()

    def release(self) -> None:
        """Let another mover have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _last_pid(self) -> int | None:
        try:
            state = self._control.read_mover()
        except (FormatError, OSError):
            return None
        return None if state is None else state.pid


def _holder(fd: int) -> int | None:
    """The process that holds the flock, from the kernel's list; None where that is of no help (another container)."""
    inode = os.fstat(fd).st_ino
    try:
        lines = Path("/proc/locks").read_text("ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5].rsplit(":", 1)[-1] == str(inode):
            return int(fields[4]) if fields[4].isdigit() and fields[4] != "0" else None
    return None
