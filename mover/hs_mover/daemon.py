"""The mover's process: checks the folders, starts a lane for each scratch, passes signals on, and waits."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from hs_formats.control import HEARTBEAT_S, now_s
from hs_formats.durable import make_folders
from hs_formats.errors import FormatError, PreflightError, StorageError
from hs_formats.location import ObjectUrl
from hs_formats.notify import Notifier
from hs_mover.config import METRICS_HOST, MoverConfig, mover_id
from hs_mover.destination import Destination, explain
from hs_mover.lane import Lane
from hs_mover.metrics import serve_metrics
from hs_mover.shared import share
from hs_mover.view import View

__all__ = ["run_mover"]

_log = logging.getLogger(__name__)

_MAX_PATH_BYTES = 2000
_OPEN_FILES = 4096


class BadFolders(PreflightError):
    """{problem}"""


class NotMoved(StorageError):
    """{count} parts could not be moved: {reason}"""


def run_mover(config: MoverConfig) -> None:
    """Move parts until a signal comes, or with ``once`` until scratch is empty.

    Raises:
        PreflightError: a folder cannot be used, or another mover runs on it.
        StorageError: with ``once``, parts are left.
    """
    _allow_open_files()
    destination = _open_destination(config)
    stop, notifier = threading.Event(), Notifier()
    with share(config) as shared:
        lanes = [Lane(src, config, destination, shared) for src in config.sources]
        started: list[Lane] = []
        previous = _on_signals(stop)
        try:
            for lane in lanes:
                try:
                    lane.start()
                except FormatError as error:
                    raise BadFolders(problem=f"--src: {error}") from error
                except OSError as error:
                    raise StorageError(f"scratch cannot be used: {error}") from error
                started.append(lane)
                _log.info(
                    "moving %s to %s as %s, codec %s", lane.control.scratch, config.dst, lane.mover_id, config.codec
                )
            with ExitStack() as stack:
                if config.metrics_port is not None:
                    port = stack.enter_context(serve_metrics(config.metrics_port, lanes))
                    _log.info("metrics at http://%s:%d/metrics", METRICS_HOST, port)
                view = stack.enter_context(View.shown(lanes)) if config.view else None
                notifier.ready()
                _wait(lanes, stop, notifier, view)
        finally:
            shared.pace.lift()
            notifier.stopping()
            for lane in started:
                lane.request_stop()
            for lane in started:
                while not lane.join(1.0):
                    pass
            for number, handler in previous.items():
                signal.signal(number, handler)
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
        _log.info("stopped; %s", lane.summary())
    unmoved = sum(lane.unmoved for lane in lanes)
    troubles = [lane.gauges.trouble for lane in lanes if lane.gauges.trouble]
    if config.once and (unmoved or troubles):
        raise NotMoved(count=unmoved, reason="; ".join(troubles) or "see the lines above")


def _allow_open_files() -> None:
    """Stored files stay open until their group is synced: take what the system grants without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
            most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _wait(lanes: list[Lane], stop: threading.Event, notifier: Notifier, view: View | None) -> None:
    tick_at_s = float("-inf")
    while not stop.wait(0.2):
        if time.monotonic() - tick_at_s >= HEARTBEAT_S:
            tick_at_s = time.monotonic()
            if all(lane.state is not None and lane.state.alive(now_s()) for lane in lanes):
                notifier.alive("; ".join(lane.summary() for lane in lanes))
            if view is not None:
                view.tick()
        ended = [lane for lane in lanes if lane.join(0)]
        if any(lane.error is not None for lane in ended) or len(ended) == len(lanes):
            return
    _log.info("stopping: finishing the parts in hand")


def _on_signals(stop: threading.Event) -> dict[int, Any]:
    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.is_set() and number == signal.SIGINT:
            os._exit(130)  # asked twice; every moment is safe to be killed at
        stop.set()

    return {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}


def _open_destination(config: MoverConfig) -> Destination:
    dst = config.dst
    if isinstance(dst, ObjectUrl):
        return _open_store(dst)
    if len(os.fsencode(dst)) > _MAX_PATH_BYTES:
        raise BadFolders(problem=f"--dst: the path is longer than {_MAX_PATH_BYTES} bytes")
    _check_apart(config, dst)
    try:
        make_folders(dst)
        probe = dst / f".{mover_id(config.sources[0])}.probe.tmp"
        probe.touch()
        probe.unlink()
        destination = Destination(dst)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and dst.is_dir():
            destination = Destination(dst)  # full: the lanes hold until there is space
        else:
            raise BadFolders(problem=f"--dst: {explain(error, dst)}") from error
    for src in config.sources:
        try:
            shared = src.is_dir() and src.stat().st_dev == dst.stat().st_dev
        except OSError as error:
            raise BadFolders(problem=f"--src: {error}") from None
        if shared:
            _log.warning("%s and %s are on one file system: moving frees only what compression saves", src, dst)
    return destination


def _open_store(dst: ObjectUrl) -> Destination:
    from hs_mover.remote_destination import RemoteDestination

    destination = RemoteDestination(dst)
    try:
        destination.check()
        kept = destination.keeps_what_is_there()
    except OSError as error:
        raise BadFolders(problem=f"--dst: {explain(error, dst)}") from error
    if not kept:
        raise BadFolders(
            problem=f"--dst {dst}: this store overwrites what it is asked to make only where there is nothing "
            "(If-None-Match: *), so that two writers could lose data: use a store that keeps to it"
        )
    return destination


def _check_apart(config: MoverConfig, folder: Path) -> None:
    dst = folder.resolve()
    seen: list[Path] = []
    for given in config.sources:
        src = given.resolve()
        if dst == src or dst.is_relative_to(src):
            raise BadFolders(
                problem=f"--dst {config.dst} is {given} or lies inside it: choose a folder outside of scratch"
            )
        for other in seen:
            if src == other or src.is_relative_to(other) or other.is_relative_to(src):
                raise BadFolders(problem=f"--src {given} and {other} are one folder or nested: give each scratch once")
        seen.append(src)
