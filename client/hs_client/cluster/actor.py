"""The actor of one node: has server and mover there, runs the client on leases, and carries what is said both ways.

Nothing of Ray is in here: it makes an actor of this class, several of whose methods run at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hs_client.cluster.child import child_command
from hs_client.cluster.errors import ActorTrouble, CannotStart, FolderBroken, OtherVersion
from hs_client.cluster.job import Closed, Event, Finished, Heard, NodeJob, Said
from hs_client.cluster.nodes import Services, last_error, program
from hs_client.cluster.record import node_folder, running
from hs_client.leases.protocol import (
    MAX_LINE_BYTES,
    ClientMessage,
    HolderMessage,
    Over,
    client_message,
    encode_line,
)
from hs_formats.errors import HsError

__all__ = ["NodeActor", "hs_version"]

_CLIENT_END_S = 60.0
_REPORT_S = 10.0
_OF_RAY = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "RAY_JOB_ID", "RAY_RAYLET_PID", "SPT_NOENV")
"""Variables that Ray sets in its workers, and that are nothing for what runs beside them."""


class NodeActor:
    """One node's part of a run: begins when it is made, and its `poll` has what happens until `Closed`."""

    def __init__(self, job: NodeJob) -> None:
        self._job = job
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._interrupts = 0
        self._pid = 0
        self._ours: socket.socket | None = None
        self._given = 0
        self._early: dict[int, Sequence[HolderMessage]] = {}
        self._talk = threading.Lock()
        self._environment = {**_environment(gpus=job.gpus), **job.environment}
        self._folder = node_folder(self._environment, Path(job.scratch))
        threading.Thread(target=self._live, name="hs-node", daemon=True).start()

    # -- what the driver calls

    def poll(self, wait_s: float) -> list[Event]:
        """What has happened since the last call, after `wait_s` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._events, wait_s)
            events, self._events = self._events, []
        return events

    def give(self, number: int, messages: Sequence[HolderMessage]) -> None:
        """Tell the client. `number` counts the calls from 0: Ray may run them in another order."""
        with self._talk:
            self._early[number] = messages
            while self._given in self._early:
                lines = b"".join(map(encode_line, self._early.pop(self._given)))
                self._given += 1
                if self._ours is not None:
                    with contextlib.suppress(OSError):  # it is ending, and says so itself
                        self._ours.sendall(lines)

    def interrupt(self) -> None:
        """Ctrl-C for the client: the first time it drains, the second time it leaves. Nothing more is started."""
        self._stopping.set()
        self._interrupts += 1
        if self._pid:
            self._signal(signal.SIGINT)

    # -- its life, in a thread

    def _live(self) -> None:
        # Ray blocks SIGINT, and threads hand what is blocked on to what they start.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        services = Services(
            self._job, folder=self._folder, environment=self._environment, say=self._say, stopping=self._stopping
        )
        over = Finished(130)
        try:
            if self._job.tidy:
                return
            self._put(Said(f"process {os.getpid()}, logs in {self._folder}"))
            if self._job.version != hs_version():
                raise OtherVersion(there=hs_version(), here=self._job.version)
            services.prepare()
            if not self._stopping.is_set():
                over = self._client()
        except HsError as error:
            over = Finished(error.exit_code, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver is to know
            over = Finished(ActorTrouble.exit_code, str(ActorTrouble(reason=f"{type(error).__name__}: {error}")))
        finally:
            if not self._job.tidy:
                self._put(over)
            try:
                services.close()
            except (OSError, subprocess.SubprocessError) as error:
                self._say(f"warning: cannot stop what was started: {error}")
            self._put(Closed())

    def _client(self) -> Finished:
        """Run the client to its end."""
        log = self._folder / "client.log"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            begin = log.stat().st_size if log.exists() else 0
        except OSError as error:
            raise FolderBroken(path=self._folder, reason=error.strerror or error) from None
        ours, theirs = socket.socketpair()
        reader, report = os.pipe()
        with ours, os.fdopen(reader, "rb"):
            try:
                self._start(log, theirs.fileno(), report)
            finally:
                theirs.close()
                os.close(report)
            with self._talk:
                self._ours = ours
            words = Over(exit_code=130)
            silent = True
            try:
                for message in self._messages(ours):
                    if isinstance(message, Over):
                        words, silent = message, False
                    self._put(Heard(message))
                    begin = self._pass_on(log, begin)
            except HsError:
                self._signal(signal.SIGKILL)
                raise
            finally:
                with self._talk:
                    self._ours = None
            code = self._wait(reader)
            self._pass_on(log, begin)
        if silent:
            how = last_error(log, begin) if code > 0 else f"ended by {signal.Signals(-code).name}" if code else "ended"
            return Finished(code, f"the client says no more: {how} (see {log})", silent=True)
        return Finished(words.exit_code, words.error)

    def _start(self, log: Path, leases: int, report: int) -> None:
        """Start it as nobody's child, so that it outlives this process: the end of the leases lets it end in order."""
        command = [program("hs-client"), *self._job.arguments, "--leases", str(leases)]
        done = subprocess.run(
            child_command(command, detach=log, report=report),
            pass_fds=(leases, report),
            cwd=self._job.place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout.strip().isdecimal():
            raise CannotStart(command=command[0], reason=(done.stderr.strip() or "it says nothing").splitlines()[-1])
        self._pid = int(done.stdout)
        for _ in range(self._interrupts):
            self._signal(signal.SIGINT)

    def _messages(self, ours: socket.socket) -> Iterator[ClientMessage]:
        with ours.makefile("rb") as lines:
            while True:
                try:
                    line = lines.readline(MAX_LINE_BYTES)
                except ConnectionError:
                    return
                if not line.endswith(b"\n"):
                    return  # it was killed in the middle of a line
                yield client_message(line)

    def _wait(self, report: int) -> int:
        """The exit code, once the keeper has said it."""
        end_s = time.monotonic() + _CLIENT_END_S
        os.set_blocking(report, False)
        killed = False
        while True:
            try:
                text = os.read(report, 100)
            except BlockingIOError:
                text = None
            if text:
                return int(text.split()[1])
            if text == b"":
                return -signal.SIGKILL  # the keeper was killed, too
            if time.monotonic() > end_s:
                if killed:
                    return -signal.SIGKILL
                self._signal(signal.SIGKILL)
                killed, end_s = True, time.monotonic() + _REPORT_S
            time.sleep(0.05)

    def _pass_on(self, log: Path, begin: int) -> int:
        """Say what the client has warned of behind byte `begin` of its log; returns how far it was read."""
        try:
            with log.open("rb") as file:
                file.seek(begin)
                text = file.read()
        except OSError:
            return begin
        text = text[: text.rfind(b"\n") + 1]
        for line in text.decode(errors="replace").splitlines():
            if line.startswith("warning"):
                self._say(line)
        return begin + len(text)

    def _signal(self, number: int) -> None:
        if running(self._pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _say(self, text: str) -> None:
        self._put(Said(text))

    def _put(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()


def hs_version() -> str:
    """Of the installed hs-extract."""
    try:
        return version("hs-extract")
    except PackageNotFoundError:
        return "unknown"


def _environment(*, gpus: float) -> Mapping[str, str]:
    """That of this process without what Ray has set in it alone; where Ray gave no GPUs, all that it hides are seen."""
    raylet = _environment_of(os.getppid())
    own = dict(os.environ)
    for name in (*_OF_RAY, *(() if gpus else ("CUDA_VISIBLE_DEVICES",))):
        own.pop(name, None)
        if name in raylet:
            own[name] = raylet[name]
    return own


def _environment_of(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return {}
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)
