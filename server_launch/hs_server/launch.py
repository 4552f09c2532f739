"""`hs-server launch`: from a plan to a server that is proved ready, and its life until somebody stops it.

Signals are blocked and taken only where the launcher waits, so that none can fall between starting the server and
noting that it was started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hs_formats.errors import HsError, PreflightError, ServerLost, UsageError
from hs_formats.notify import Notifier
from hs_server.before_start import check_before_start
from hs_server.dry_run import dry_run_lines
from hs_server.dump_dir import file_system_type, prepare_dump_dir
from hs_server.errors import LaunchInterrupted
from hs_server.orphans import launch_variables
from hs_server.plan import make_plan
from hs_server.preflight import check_model_class, check_plugins, check_port, check_sglang, check_source, view_plugins
from hs_server.process_group import HELD_SIGNALS, ServerGroup, start_group, take_signal
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
from hs_server.records import LaunchRecord, RecordStore, state_folder
from hs_server.rendezvous import rendezvous_arguments
from hs_server.sentinel import Sentinel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hs_server.patch.installation import Installation
    from hs_server.plan import LaunchPlan, LaunchRequest

__all__ = ["LaunchOptions", "dry_run", "launch"]

_POLL_S = 0.25
_PROBE_TIMEOUT_S = 5.0
_SAY_EVERY_S = 20.0

_ARGPARSE_EXIT = 2

_MARKER_GRACE_S = 5.0
"""Markers are written long before SGLang answers; this covers a slow file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How the launch behaves, as opposed to what is launched."""

    log: Path | None = None
    detach: bool = False
    startup_timeout_s: float = 1800.0
    doctor: bool = True
    share_gpus: bool = False


class _StopAskedError(Exception):
    """A signal asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


def launch(request: LaunchRequest, options: LaunchOptions, environment: Mapping[str, str]) -> int:
    """Launch and, unless detached, stay until the server ends or a signal stops it; returns the exit code.

    Raises:
        HsError: the launch was refused, failed, or was interrupted; nothing is left running then.
    """
    plan, source = _checked_plan(request, environment)
    store = RecordStore(state_folder(environment))
    store.create()
    with _signals_held():
        return _run(plan, options, store=store, source=source)


def dry_run(request: LaunchRequest, environment: Mapping[str, str], *, assume_version: str | None = None) -> int:
    """Print what a launch would run, and start nothing.

    Args:
        request: the launch.
        environment: the surrounding one.
        assume_version: the SGLang version to plan for, whatever is installed; None for the installed one, which is
            then checked as a launch would check it.

    Raises:
        HsError: a launch would be refused.
    """
    if assume_version is None:
        plan, _ = _checked_plan(request, environment)
    else:
        plan = make_plan(request, environment, sglang_version=assume_version)
    for line in dry_run_lines(plan, environment):
        _say(line)
    return 0


def _checked_plan(request: LaunchRequest, environment: Mapping[str, str]) -> tuple[LaunchPlan, Installation | None]:
    """The plan for the installed SGLang and, in source mode, its patched installation."""
    plan = make_plan(request, environment, sglang_version=check_sglang())
    check_model_class(plan)
    check_plugins(plan, view_plugins(environment))
    return plan, check_source(plan)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Block what `_pause` and `wait_end` take; a signal still waiting afterwards arrives then."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(plan: LaunchPlan, options: LaunchOptions, *, store: RecordStore, source: Installation | None) -> int:
    request = plan.request
    with store.lock(request.port):
        _clear_leftovers(store, request.port)
        check_port(request.host, request.port)
        if request.capture is not None:
            prepare_dump_dir(request.capture.dump_dir)
        looked_at = check_before_start(plan, share_gpus=options.share_gpus)
        plan = replace(plan, argv=plan.argv + rendezvous_arguments(plan.topology, request.pass_through))
        log = (options.log or store.log_path(request.port)).absolute()
        _announce(plan, looked_at, log=log)
        server = _Server.start(plan, log=log, store=store, tied=not options.detach, source=source)
        try:
            server.wait_ready(timeout_s=options.startup_timeout_s, doctor=options.doctor)
        except _StopAskedError as asked:
            server.stop()
            raise LaunchInterrupted(signal=asked) from None
        except BaseException:
            server.stop()
            raise
    if options.detach:
        server.let_go()
    _say(f"ready {plan.url}")
    if options.detach:
        return 0
    systemd = Notifier()
    systemd.ready()
    try:
        server.wait_end()
    except _StopAskedError as asked:
        systemd.stopping()
        _say(f"{asked}: stopping the server")
        server.stop()
        return 0
    except BaseException:
        server.stop()
        raise
    return 0


class _Server:
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
    ) -> _Server:
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
                _say(f"          still starting after {waited_s:.0f} s: {' '.join(log_tail(self._log, lines=1))[:110]}")
            _pause(_POLL_S)
        answered_s = time.monotonic() - started
        self._check_armed()
        _say(f"          answers after {answered_s:.0f} s")
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
                raise _StopAskedError(number)
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
            _say("capture   dormant (--no-capture)")
            return
        deadline = time.monotonic() + _MARKER_GRACE_S
        while True:
            state = armed_state(capture.dump_dir, nonce=self._plan.nonce, expected=self._plan.topology.local_ranks)
            if state.complete:
                break
            self._check_running("while its start-up markers were awaited")
            if time.monotonic() > deadline:
                raise PreflightError(why_not_armed(state, self._log, source=self._source))
            _pause(_POLL_S)
        if (reason := wrong_way(state, mode=self._plan.capture_mode, source=self._source)) is not None:
            raise PreflightError(reason)
        for line in capture_lines(state):
            _say(line)

    def _examine(self, *, doctor: bool) -> None:
        capture = self._plan.request.capture
        if capture is None:
            return
        if not doctor:
            _say("doctor    NOT RUN (--skip-doctor): nobody has seen that the captured states are right")
            return
        from hs_server.doctor.command import launched_target
        from hs_server.doctor.examine import examine, pass_lines

        try:
            passed = examine(launched_target(self._plan), pause=_pause, say=_say)
        except HsError:
            self._check_running("while the doctor examined it")
            raise
        for line in pass_lines(passed):
            _say(line)

    def _last_lines(self) -> str:
        lines = log_tail(self._log, lines=12)
        return "\n".join([f"  last lines of {self._log}:", *(f"    {line[:200]}" for line in lines)])


def _clear_leftovers(store: RecordStore, port: int) -> None:
    """End what a server on `port` left behind when it died.

    Raises:
        PreflightError: that server still runs.
    """
    record = store.find(port)
    if record is None:
        return
    if record.group.leader_alive():
        raise PreflightError(
            f"port {port} is taken by pid {record.pid}, a server launched here ({record.model_path})\n"
            f"  hs-server stop --port {port}, or choose another --port"
        )
    _say(f"ending {len(record.group.members())} left-over processes of an earlier server on port {port}")
    record.group.stop()
    store.remove(record)


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


def _announce(plan: LaunchPlan, looked_at: Sequence[str], *, log: Path) -> None:
    mode = f", {plan.capture_mode} mode" if plan.capture_mode else ""
    _say(f"launching SGLang {plan.sglang.text}, profile {plan.profile.name}{mode}: {plan.request.model_path}")
    if plan.sglang.unread:
        _say(f"          {plan.sglang.unread}")
    if plan.overridden:
        _say(f"          given after --, so not from the profile: {' '.join(plan.overridden)}")
    if plan.request.capture is not None:
        for line in plan.boundary_lines():
            _say(line)
        folder = plan.request.capture.dump_dir
        kind = file_system_type(folder)
        note = "" if kind == "tmpfs" else f"  (on {kind or 'an unknown file system'}; tmpfs is faster)"
        _say(f"scratch   {folder}{note}")
    for line in looked_at:
        _say(line)
    _say(f"log       {log}")


def _pause(seconds: float) -> None:
    """Sleep, unless a signal asks to stop.

    Raises:
        _StopAskedError: one did.
    """
    number = take_signal(seconds)
    if number is not None:
        raise _StopAskedError(number)


def _say(line: str) -> None:
    # A reader that has gone away (hs-server launch | head) must not take the server with it.
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
