"""`hs-server launch`: from a plan to a server that is proved ready, and its life until somebody stops it.

Signals are blocked and taken only where the launcher waits, so that none can fall between starting the server and
noting that it was started.
"""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hs_formats.errors import PreflightError
from hs_formats.notify import Notifier
from hs_formats.state import state_folder
from hs_server.before_start import check_before_start
from hs_server.dry_run import dry_run_lines
from hs_server.dump_dir import file_system_type, prepare_dump_dir
from hs_server.errors import LaunchInterrupted
from hs_server.plan import make_plan
from hs_server.preflight import check_model_class, check_plugins, check_port, check_sglang, check_source, view_plugins
from hs_server.process_group import HELD_SIGNALS
from hs_server.records import RecordStore
from hs_server.rendezvous import rendezvous_arguments
from hs_server.running import RunningServer, StopAskedError, pause, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hs_server.patch.installation import Installation
    from hs_server.plan import LaunchPlan, LaunchRequest

__all__ = ["LaunchOptions", "dry_run", "launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How the launch behaves, as opposed to what is launched."""

    log: Path | None = None
    detach: bool = False
    startup_timeout_s: float = 1800.0
    doctor: bool = True
    share_gpus: bool = False


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
        say(line)
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
        try:
            looked_at = check_before_start(plan, share_gpus=options.share_gpus, pause=pause, say=say)
        except StopAskedError as asked:
            raise LaunchInterrupted(signal=asked) from None
        plan = replace(plan, argv=plan.argv + rendezvous_arguments(plan.topology, request.pass_through))
        log = (options.log or store.log_path(request.port)).absolute()
        _announce(plan, looked_at, log=log)
        server = RunningServer.start(plan, log=log, store=store, tied=not options.detach, source=source)
        try:
            server.wait_ready(timeout_s=options.startup_timeout_s, doctor=options.doctor)
        except StopAskedError as asked:
            server.stop()
            raise LaunchInterrupted(signal=asked) from None
        except BaseException:
            server.stop()
            raise
    if options.detach:
        server.let_go()
    say(f"ready {plan.url}")
    if options.detach:
        return 0
    systemd = Notifier()
    systemd.ready()
    try:
        server.wait_end()
    except StopAskedError as asked:
        systemd.stopping()
        say(f"{asked}: stopping the server")
        server.stop()
        return 0
    except BaseException:
        server.stop()
        raise
    return 0


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
    say(f"ending {len(record.group.members())} left-over processes of an earlier server on port {port}")
    record.group.stop()
    store.remove(record)


def _announce(plan: LaunchPlan, looked_at: Sequence[str], *, log: Path) -> None:
    mode = f", {plan.capture_mode} mode" if plan.capture_mode else ""
    say(f"launching SGLang {plan.sglang.text}, profile {plan.profile.name}{mode}: {plan.request.model_path}")
    if plan.sglang.unread:
        say(f"          {plan.sglang.unread}")
    if plan.overridden:
        say(f"          given after --, so not from the profile: {' '.join(plan.overridden)}")
    if plan.request.capture is not None:
        for line in plan.boundary_lines():
            say(line)
        folder = plan.request.capture.dump_dir
        kind = file_system_type(folder)
        note = "" if kind == "tmpfs" else f"  (on {kind or 'an unknown file system'}; tmpfs is faster)"
        say(f"scratch   {folder}{note}")
    for line in looked_at:
        say(line)
    say(f"log       {log}")
