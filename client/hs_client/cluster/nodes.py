"""The server and the mover of one node: adopted where they live, else started; stopped at the end if they are ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event

from hs_client.cluster.child import child_command
from hs_client.cluster.errors import FolderBroken, LaunchFailed, LaunchRefused, MoverNotStarted
from hs_client.cluster.job import NodeJob
from hs_client.cluster.record import Started, launching, moving, read_started, running, write_started
from hs_formats.control import ControlFolder, now_s
from hs_formats.errors import FormatError
from hs_formats.names import CANARY_RUN, PartName

__all__ = ["Services", "last_error", "program"]

_POLL_S = 0.2
_MOVER_START_S = 60.0
_MOVER_END_S = 120.0
_DRAIN_S = 60.0
_STOP_S = 120.0
_REFUSED = (2, 3)
_STOPPED = (0, 4)
"""Exit codes of `hs-server stop`: stopped; there was none."""
_RUNS = (0, 3)
"""Exit codes of `hs-server status`: it runs; it runs, but its capture is not armed."""
_TAIL_BYTES = 16 << 10


class Services:
    """Server and mover of one node.

    Args:
        job: which they are to be.
        folder: for logs and the record of what was started.
        environment: of everything that is started.
        say: a line for the user.
        stopping: set when nothing more is to be started.
    """

    def __init__(
        self, job: NodeJob, *, folder: Path, environment: Mapping[str, str], say: Callable[[str], None], stopping: Event
    ) -> None:
        self._job = job
        self._folder = folder
        # A launch leaves its record here: homes, where records lie else, may be shared between machines.
        self._environment = {**environment, "HS_STATE_DIR": str(folder)}
        self._say = say
        self._stopping = stopping
        self._control = ControlFolder(Path(job.scratch))
        self._started = read_started(folder)

    def prepare(self) -> None:
        """Have both, where they are to be started; the client says what is missing else.

        Raises:
            HsError: one does not start.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._job.mover is not None and not self._stopping.is_set():
                self._have_mover(self._job.mover)
            if self._job.server is not None and not self._stopping.is_set():
                self._have_server(self._job.server)
        except OSError as error:
            raise FolderBroken(path=self._folder, reason=error.strerror or error) from None

    def close(self) -> None:
        """Stop what was started here, also by an actor that is no more: first the server, then the mover, which stores
        what is in scratch. What was adopted stays."""
        if self._job.server is not None:
            self._stop_server()
        if self._job.mover is not None:
            self._stop_mover()

    # -- the server

    def _have_server(self, arguments: Sequence[str]) -> None:
        self._await_launch()
        port = self._job.port
        if self._serving:
            left = "an earlier run has left" if self._server_is_ours() else "was there"
            self._say(f"takes the server on port {port} that {left}")
            return
        self._say(f"launches its server on port {port}, which may take minutes")
        log = self._folder / "launch.log"
        begin = [program("hs-server"), "launch", "--detach", "--port", str(port), "--dump-dir", self._job.scratch]
        if "--log" not in arguments:
            begin += ["--log", str(self._folder / "server.log")]
        cut = arguments.index("--") if "--" in arguments else len(arguments)
        words = [*begin[:2], *arguments[:cut], *begin[2:], *arguments[cut:]]
        size = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            process = subprocess.Popen(
                child_command(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._job.place,
            )
        self._note(launcher=process.pid)
        code = self._wait(process)
        self._note(launcher=0)
        if code and not self._stopping.is_set():
            error = LaunchRefused if code in _REFUSED else LaunchFailed
            raise error(reason=last_error(log, size) or f"exit code {code}", log=log)

    @property
    def _serving(self) -> bool:
        return bool(self._control.live_markers(port=self._job.port))

    def _server_is_ours(self) -> bool:
        """It was launched here: hs-server keeps the records of such launches apart, in our folder."""
        return self._hs_server("status") in _RUNS

    def _hs_server(self, what: str) -> int:
        """The exit code of `hs-server`, for the server on our port; below 0 where it does not end."""
        command = child_command([program("hs-server"), what, "--port", str(self._job.port)])
        try:
            return subprocess.run(
                command, env=self._environment, capture_output=True, timeout=_STOP_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return -1

    def _await_launch(self) -> None:
        """A launch of an actor that was killed may still be under way; it leaves a server, or nothing."""
        while launching(self._started.launcher) and not self._stopping.is_set():
            time.sleep(_POLL_S)
        if self._started.launcher:
            self._note(launcher=0)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if self._stopping.is_set():
                    process.send_signal(signal.SIGTERM)  # the launcher ends what it has started
                    return process.wait()

    def _stop_server(self) -> None:
        self._await_launch()
        # Also where none answers: processes of one that has died may be left. Of what was adopted it knows nothing.
        if self._hs_server("stop") not in _STOPPED:
            self._say(f"warning: its server does not stop: `HS_STATE_DIR={self._folder} hs-server stop` there")

    # -- the mover

    def _have_mover(self, arguments: Sequence[str]) -> None:
        alive = self._live_mover()
        if alive:
            ours = alive == self._started.mover
            self._note(mover=alive if ours else 0)
            self._say(
                f"takes the mover on {self._job.scratch} that {'an earlier run has left' if ours else 'was there'}"
            )
            return
        log = self._folder / "mover.log"
        size = log.stat().st_size if log.exists() else 0
        command = [program("hs-mover"), "--src", self._job.scratch, *arguments]
        done = subprocess.run(
            child_command(command, detach=log),
            env=self._environment,
            cwd=self._job.place,
            capture_output=True,
            text=True,
            check=True,
        )
        pid = int(done.stdout)
        self._note(mover=pid)
        end_s = time.monotonic() + _MOVER_START_S
        while self._live_mover() != pid:
            if not running(pid):
                self._note(mover=0)
                raise MoverNotStarted(reason=last_error(log, size) or "it has ended", log=log)
            if time.monotonic() > end_s:
                raise MoverNotStarted(reason=f"no heartbeat for {_MOVER_START_S:.0f} s", log=log)
            time.sleep(_POLL_S)

    def _live_mover(self) -> int:
        """Its process; 0 where none lives."""
        try:
            state = self._control.read_mover()
        except (FormatError, OSError):
            return 0
        return state.pid if state is not None and state.alive(now_s()) else 0

    def _stop_mover(self) -> None:
        pid = self._started.mover
        if moving(pid):  # also one that hangs, and has no heartbeat
            left = self._drain()
            if left:
                self._say(
                    f"warning: {left} part files stay in {self._job.scratch}, since nothing was stored for"
                    f" {_DRAIN_S:.0f} s: see {self._folder / 'mover.log'}, then repeat the command"
                )
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            end_s = time.monotonic() + _MOVER_END_S
            while running(pid):
                if time.monotonic() > end_s:
                    self._say(f"warning: its mover, process {pid}, does not stop")
                    return
                time.sleep(_POLL_S)
        self._note(mover=0)

    def _drain(self) -> int:
        """Wait until scratch has no parts; returns how many there are when none has gone for a while."""
        fewest, since_s = -1, time.monotonic()
        while True:
            parts = self._parts()
            if fewest < 0 or parts < fewest:
                fewest, since_s = parts, time.monotonic()
            if not parts or time.monotonic() - since_s > _DRAIN_S:
                return parts
            time.sleep(_POLL_S)

    def _parts(self) -> int:
        try:
            return sum(map(_is_part, os.listdir(self._job.scratch)))
        except OSError:
            return 0

    def _note(self, *, launcher: int | None = None, mover: int | None = None) -> None:
        old = self._started
        self._started = Started(
            launcher=old.launcher if launcher is None else launcher, mover=old.mover if mover is None else mover
        )
        write_started(self._folder, self._started)


def _is_part(name: str) -> bool:
    """A file that the mover takes: canary requests' are the server's business."""
    try:
        return PartName.parse(name).rid.run != CANARY_RUN
    except FormatError:
        return False


def program(name: str) -> str:
    """The path of one of our commands: beside this Python, else wherever the shell finds it."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


def last_error(log: Path, begin: int) -> str:
    """The last line ``error: …`` of what was appended to `log` behind byte `begin`; else its last line."""
    try:
        with log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(begin, end - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line.rstrip() for line in lines if line.strip()]
    errors = [at for at, line in enumerate(lines) if line.startswith("error: ")]
    if not errors:
        return lines[-1].strip() if lines else ""
    found = [lines[errors[-1]].removeprefix("error: ")]
    for line in lines[errors[-1] + 1 :]:  # what belongs to it is indented
        if not line.startswith(" "):
            break
        found.append(line.strip())
    return "; ".join(found)
