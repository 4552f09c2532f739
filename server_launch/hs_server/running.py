"""A launched server: started and noted, waited for until it is proved ready, watched, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hs_formats.errors import HsError, PreflightError, ServerLost, UsageError
from hs_server.orphans import launch_variables
from hs_server.process_group import ServerGroup, start_group, take_signal
from hs_server.processes import boot_id, process_info
from hs_server.readiness import (
    armed_state,
    capture_lines,
    http_status,
    log_tail,
    refusal,
    why_not_armed,
    wrong_way,
)
from hs_server.records import LaunchRecord, RecordStore
from hs_server.sentinel import Sentinel

if TYPE_CHECKING:
    from hs_server.patch.installation import Installation
    from hs_server.plan import LaunchPlan

__all__ = ["RunningServer", "StopAskedError", "pause", "say"]

_POLL_S = 0.25
_PROBE_TIMEOUT_S = 5.0
_SAY_EVERY_S = 20.0

_ARGPARSE_EXIT = 2

_MARKER_GRACE_S = 5.0
"""Markers are written long before SGLang answers; this covers a slow file system."""


class StopAskedError(Exception):
    """A signal asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


class RunningServer:
    """A running server and what the launcher knows of it."""

    def __init__(
        self,
        plan: LaunchPlan,
        child: subprocess.Popen[bytes],
        *,
        record: LaunchRecord,
        log: Path,
        store: RecordStore,
        source: Installation | None,
    ) -> None:
        self._plan = plan
        self._child = child
        self._record = record
        self._log = log
        self._store = store
        self._source = source
        self._sentinel: Sentinel | None = None

    @classmethod
    def start(
        cls, plan: LaunchPlan, *, log: Path, store: RecordStore, tied: bool, source: Installation | None
    ) -> RunningServer:
        """Start SGLang and note it.

        Raises:
            UsageError: the log cannot be written.
            PreflightError: the state folder cannot be written.
        """
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                log.replace(log.with_name(log.name + ".old"))
            stream = _private(log)
        except OSError as error:
            raise UsageError(f"log {log} cannot be written: {error.strerror}\n  choose another with --log") from None
        with stream:
            child, group = start_group(
                plan.argv,
                environment=plan.environment | launch_variables(port=plan.request.port, state=store.state),
                log=stream,
                launch_id=plan.launch_id,
                tied=tied,
            )
        server = cls(plan, child, record=_record(plan, group, log=log), log=log, store=store, source=source)
        try:
            store.write(server._record)
            server._sentinel = Sentinel.post(group)
        except OSError as error:
            server.stop()
            raise PreflightError(
                f"the launch cannot be recorded: {error}\n  name a state folder in HS_STATE_DIR"
            ) from None
        return server

    def wait_ready(self, *, timeout_s: float, doctor: bool) -> None:
        """Return once SGLang answers, every rank has proved that its capture is armed, and the doctor has passed it.

        Raises:
            ServerLost: SGLang ended or took too long.
            PreflightError: it answers, but the capture is not armed, or what it writes is not right.
            StorageError: scratch has no room for the doctor's requests.
        """
        started = time.monotonic()
        said = started
        host, port = self._plan.reachable_host.strip("[]"), self._plan.request.port
        while http_status(host, port, "/health", timeout_s=_PROBE_TIMEOUT_S) != 200:
            self._check_running("before it was ready")
            waited_s = time.monotonic() - started
            if waited_s > timeout_s:
                raise ServerLost(
                    f"SGLang was not ready after {waited_s:.0f} s\n"
                    f"  allow more with --startup-timeout\n{self._last_lines()}"
                )
            if time.monotonic() - said > _SAY_EVERY_S:
                said = time.monotonic()
                say(f"          still starting after {waited_s:.0f} s: {' '.join(log_tail(self._log, lines=1))[:110]}")
            pause(_POLL_S)
        answered_s = time.monotonic() - started
        self._check_armed()
        say(f"          answers after {answered_s:.0f} s")
        self._examine(doctor=doctor)
        self._record = self._store.mark_ready(self._record)

    def wait_end(self) -> None:
        """Wait until SGLang ends by itself.

        Raises:
            ServerLost: always, once it has ended.
        """
        while True:
            number = take_signal(1.0, also_child=True)
            if number is not None:
                raise StopAskedError(number)
            self._check_running("while serving")

    def stop(self) -> None:
        """End every process of the launch; a second signal makes it quick.

        Raises:
            ServerLost: some process could not even be killed.
        """
        asked_again = False

        def hurry() -> bool:
            nonlocal asked_again
            asked_again = asked_again or take_signal(0) is not None
            return asked_again

        report = self._record.group.stop(hurry=hurry, reap=self._child.poll)
        self._child.poll()
        if report.left:
            raise ServerLost(f"these processes of the server cannot be killed: {list(report.left)}")
        self._store.remove(self._record)
        self.let_go()

    def let_go(self) -> None:
        """From here on the server may outlive the launcher."""
        if self._sentinel is not None:
            self._sentinel.dismiss()

    def _check_running(self, when: str) -> None:
        code = self._child.poll()
        if code is None:
            return
        reason = refusal(self._log)
        if reason is not None:
            raise PreflightError(f"the capture refused to start: {reason}\n  log: {self._log}")
        said = [line for line in log_tail(self._log, lines=400) if ": error: " in line]
        if code == _ARGPARSE_EXIT and said:
            raise UsageError(f"SGLang does not take these arguments: {said[-1].partition(': error: ')[2]}")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise ServerLost(f"SGLang ended {when} ({how})\n{self._last_lines()}")

    def _check_armed(self) -> None:
        capture = self._plan.request.capture
        if capture is None:
            say("capture   dormant (--no-capture)")
            return
        deadline = time.monotonic() + _MARKER_GRACE_S
        while True:
            state = armed_state(capture.dump_dir, nonce=self._plan.nonce, expected=self._plan.topology.local_ranks)
            if state.complete:
                break
            self._check_running("while its start-up markers were awaited")
            if time.monotonic() > deadline:
                raise PreflightError(why_not_armed(state, self._log, source=self._source))
            pause(_POLL_S)
        if (reason := wrong_way(state, mode=self._plan.capture_mode, source=self._source)) is not None:
            raise PreflightError(reason)
        for line in capture_lines(state):
            say(line)

    def _examine(self, *, doctor: bool) -> None:
        capture = self._plan.request.capture
        if capture is None:
            return
        if not doctor:
            say("doctor    NOT RUN (--skip-doctor): nobody has seen that the captured states are right")
            return
        from hs_server.doctor.command import launched_target
        from hs_server.doctor.examine import examine, pass_lines

        try:
            passed = examine(launched_target(self._plan), pause=pause, say=say)
        except HsError:
            self._check_running("while the doctor examined it")
            raise
        for line in pass_lines(passed):
            say(line)

    def _last_lines(self) -> str:
        lines = log_tail(self._log, lines=12)
        return "\n".join([f"  last lines of {self._log}:", *(f"    {line[:200]}" for line in lines)])


def _private(log: Path) -> IO[bytes]:
    """SGLang writes its arguments there, with the API key among them."""
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _record(plan: LaunchPlan, group: ServerGroup, *, log: Path) -> LaunchRecord:
    own = process_info(os.getpid())
    capture = plan.request.capture
    return LaunchRecord(
        launch_id=plan.launch_id,
        pid=group.pid,
        start_ticks=group.start_ticks,
        boot=boot_id(),
        launcher_pid=os.getpid(),
        launcher_start_ticks=own.start_ticks if own else 0,
        host=plan.request.host,
        port=plan.request.port,
        url=plan.url,
        model_path=plan.request.model_path,
        profile=plan.profile.name,
        dump_dir=str(capture.dump_dir.absolute()) if capture else "",
        nonce=plan.nonce if capture else "",
        local_ranks=plan.topology.local_ranks,
        log=str(log),
    )


def pause(seconds: float) -> None:
    """Sleep, unless a signal asks to stop.

    Raises:
        StopAskedError: one did.
    """
    number = take_signal(seconds)
    if number is not None:
        raise StopAskedError(number)


def say(line: str) -> None:
    # A reader that has gone away (hs-server launch | head) must not take the server with it.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
