"""A process that outlives the launcher just long enough to clean up after it.

A launcher that is killed with SIGKILL cannot stop its server. The kernel's parent-death signal reaches SGLang's main
process, but helpers that SGLang is spawning at that moment would be left for good. So the launcher forks this sentinel:
it reads from a pipe that only the launcher can write to. A byte means that all is well; end of file without one means
that the launcher died, and then the whole launch is stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from hs_server.process_group import HELD_SIGNALS

if TYPE_CHECKING:
    from hs_server.process_group import ServerGroup

__all__ = ["Sentinel"]

_ALL_IS_WELL = b"."


class Sentinel:
    """The launcher's end of the pipe."""

    def __init__(self, pid: int, fd: int) -> None:
        self._pid = pid
        self._fd = fd

    @classmethod
    def post(cls, group: ServerGroup) -> Sentinel:
        """Fork a sentinel for `group`; must be called while the process has one thread.

        Raises:
            OSError: no process or pipe can be made.
        """
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _keep_watch(reader, group)
            finally:
                os._exit(0)
        os.close(reader)
        return cls(pid, writer)

    def dismiss(self) -> None:
        """Tell it that the server is stopped, or is to live on without the launcher."""
        if self._fd < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # somebody killed it
            os.write(self._fd, _ALL_IS_WELL)
        os.close(self._fd)
        self._fd = -1
        os.waitpid(self._pid, 0)


def _keep_watch(reader: int, group: ServerGroup) -> None:
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
    # What asks the launcher to stop may be sent to its whole group or session; this one goes last.
    for number in HELD_SIGNALS - {signal.SIGCHLD}:
        signal.signal(number, signal.SIG_IGN)
    # Nothing that the launcher holds may stay open here: its output, its locks, and its end of the pipe above all.
    os.dup2(reader, 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.close(null)
    if os.read(3, 1) != _ALL_IS_WELL:
        group.stop()
