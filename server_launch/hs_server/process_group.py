"""Starting SGLang in a session of its own, and stopping everything that came out of it.

SGLang's main process drains its requests on SIGTERM and then ends its schedulers, so it alone is asked first; signals
to all would cut the capture's writers short. What is left after that gets SIGTERM, then SIGKILL. Members are found by
session and by a variable that all descendants inherit, so a process that left the session is found as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hs_server.plan import ENV_LAUNCH_ID
from hs_server.processes import ProcessInfo, has_variable, list_processes, process_info

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["HELD_SIGNALS", "ServerGroup", "StopReport", "start_group", "take_signal"]

_STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})

HELD_SIGNALS = _STOP_SIGNALS | {signal.SIGCHLD}
"""What the launcher blocks while it has a server, and takes with `take_signal` where it waits."""

_PR_SET_PDEATHSIG = 1

_DRAIN_S = 20.0
"""How long the main process may take to finish its requests and end its children (5 s is usual)."""

_TERM_S = 5.0
"""How long the rest may take after SIGTERM."""

_KILL_S = 10.0
"""How long the kernel may take to end killed processes (large GPU allocations take seconds)."""

_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """How a stop went: `killed` had to be killed, `left` did not even go then."""

    killed: tuple[int, ...]
    left: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGroup:
    """All processes of one launch; the leader's pid is also the session's id."""

    pid: int
    start_ticks: int
    launch_id: str

    def leader_alive(self) -> bool:
        """Whether the server's main process runs (and is no other process under its old pid)."""
        info = process_info(self.pid)
        return info is not None and info.alive and info.start_ticks == self.start_ticks

    def members(self) -> list[int]:
        """Pids of all living processes of the launch."""
        leader = process_info(self.pid)
        # While a session has members the kernel does not reuse its id, so a stranger under the leader's pid means
        # that the session is over.
        reused = leader is not None and leader.start_ticks != self.start_ticks

        def belongs(process: ProcessInfo) -> bool:
            if process.session == self.pid and not reused and process.start_ticks >= self.start_ticks:
                return True
            return process.start_ticks >= self.start_ticks and has_variable(process.pid, ENV_LAUNCH_ID, self.launch_id)

        own = os.getpid()
        return [process.pid for process in list_processes() if process.pid != own and belongs(process)]

    def stop(
        self, *, hurry: Callable[[], bool] = lambda: False, reap: Callable[[], object] | None = None
    ) -> StopReport:
        """End every process of the launch: the leader gently, the rest with SIGTERM, whatever remains with SIGKILL.

        `hurry` is asked while waiting; once true, the gentle steps are skipped. `reap` collects a child's exit status.
        """

        def gone_within(seconds: float) -> bool:
            deadline = time.monotonic() + seconds
            while True:
                if reap is not None:
                    reap()
                if not self.members():
                    return True
                if hurry() or time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL_S)

        if self.leader_alive():
            _send([self.pid], signal.SIGTERM)
            deadline = time.monotonic() + _DRAIN_S
            while self.leader_alive() and time.monotonic() < deadline and not hurry():
                if reap is not None:
                    reap()
                time.sleep(_POLL_S)
        killed: list[int] = []
        # Children of a leader that has just gone are on their way out.
        if not gone_within(1.0):
            _send(self.members(), signal.SIGTERM)
            if not gone_within(_TERM_S):
                killed = self.members()
                deadline = time.monotonic() + _KILL_S
                while (left := self.members()) and time.monotonic() < deadline:
                    _send(left, signal.SIGKILL)
                    time.sleep(_POLL_S)
                    if reap is not None:
                        reap()
        return StopReport(killed=tuple(killed), left=tuple(self.members()))


def start_group(
    argv: Sequence[str], *, environment: Mapping[str, str], log: IO[bytes], launch_id: str, tied: bool
) -> tuple[subprocess.Popen[bytes], ServerGroup]:
    """Start `argv` as the leader of a new session, output to `log`.

    A `tied` server gets SIGTERM from the kernel when the launcher dies, even by SIGKILL.

    Raises:
        OSError: the program cannot be started.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    launcher = os.getpid()

    def in_child() -> None:
        # Runs between fork and exec; the launcher has one thread only, so that is safe.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
        if tied:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != launcher:
                os.kill(os.getpid(), signal.SIGTERM)

    child = subprocess.Popen(
        list(argv),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=in_child,  # noqa: PLW1509 - see in_child
    )
    info = process_info(child.pid)
    return child, ServerGroup(pid=child.pid, start_ticks=info.start_ticks if info else 0, launch_id=launch_id)


def take_signal(seconds: float, *, also_child: bool = False) -> int | None:
    """Wait up to `seconds` for a signal that asks to stop; with `also_child`, a child's end cuts the wait short.

    `nohup` and shells' background jobs have some of them ignored, which holds here too.
    """
    asking = {number for number in _STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN}
    deadline = time.monotonic() + seconds
    while True:
        taken = signal.sigtimedwait(HELD_SIGNALS, max(0.0, deadline - time.monotonic()))
        if taken is None or (taken.si_signo == signal.SIGCHLD and also_child):
            return None
        if taken.si_signo in asking:
            return taken.si_signo


def _send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
