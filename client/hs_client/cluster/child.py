"""`python -m hs_client.cluster.child [--detach LOG] [--report FD] COMMAND…`: run COMMAND as if no actor had started it.

Ray blocks SIGINT in its workers, may ignore it, and kills the children of a worker that ends. COMMAND gets the default
signals. With --detach it is nobody's child and in a session of its own, its output is appended to LOG, its number is
printed, and the line ``exit CODE`` goes to the descriptor of --report when it has ended; below 0 is a signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["child_command", "main"]


def child_command(command: Sequence[str], *, detach: Path | None = None, report: int = -1) -> list[str]:
    """The command line that runs `command` through this module."""
    options = [] if detach is None else ["--detach", str(detach)]
    options += [] if report < 0 else ["--report", str(report)]
    return [sys.executable, "-m", "hs_client.cluster.child", *options, *command]


def main(arguments: Sequence[str]) -> None:
    """Does not return."""
    words = list(arguments)
    log = report = ""
    if words[0] == "--detach":
        log, words = words[1], words[2:]
    if words[0] == "--report":
        report, words = words[1], words[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if not log:
        os.execvp(words[0], words)  # noqa: S606 - that is its job
    if os.fork():
        os._exit(0)
    os.setsid()
    _write_to(log)
    if report:
        _keep(words, int(report))
    _tell_number(os.getpid())
    os.execvp(words[0], words)  # noqa: S606 - likewise


def _write_to(log: str) -> None:
    """Standard error to `log`, nothing to be read; standard output is the caller's until the number is said."""
    for target, path, flags in ((0, os.devnull, os.O_RDONLY), (2, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, target)
        os.close(fd)


def _tell_number(pid: int) -> None:
    os.write(1, f"{pid}\n".encode())
    os.dup2(2, 1)


def _keep(words: Sequence[str], report: int) -> None:
    os.set_inheritable(report, False)
    # Nothing that the keeper holds open may hide that the command has ended.
    client = subprocess.Popen(words, stdout=2, close_fds=False)
    _tell_number(client.pid)
    os.closerange(3, report)
    os.closerange(report + 1, os.sysconf("SC_OPEN_MAX"))
    code = client.wait()
    with contextlib.suppress(OSError):  # the actor is gone
        os.write(report, f"exit {code}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
