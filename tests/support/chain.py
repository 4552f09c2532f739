"""The real chain for tests: SGLang on the CPU through `hs-server launch`, a real mover, a real client, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hs_formats.control import ControlFolder, now_s
from launching import free_port

__all__ = [
    "MoverProcess",
    "Server",
    "ServerFactory",
    "client_argv",
    "command",
    "launch_server",
    "run_client",
    "running_mover",
    "start_client",
    "wait_until",
]

_BIN = Path(sys.executable).parent


def command(name: str) -> str:
    """Path of one of our console scripts in the environment that runs the tests."""
    return str(_BIN / name)


def wait_until(condition: Any, *, timeout_s: float, what: str, every_s: float = 0.1) -> Any:
    """Poll `condition` until it is true and return its value.

    Raises:
        AssertionError: it was not in time.
    """
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what}: not within {timeout_s} s"
        time.sleep(every_s)


@dataclass
class Server:
    """A running `hs-server launch --detach`."""

    port: int
    model: Path
    scratch: Path
    log: Path
    environment: Mapping[str, str]
    output: str = ""

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def generate(self, rid: str, input_ids: Sequence[int], **sampling: Any) -> tuple[int, dict[str, Any]]:
        """POST /generate; status and answer."""
        body = {
            "rid": rid,
            "input_ids": list(input_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, **sampling},
        }
        request = urllib.request.Request(
            self.url + "/generate", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def healthy(self) -> bool:
        """GET /health answers 200."""
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=30) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def answered(self) -> int:
        """Requests for generation in the server's own access log, ours and the warm-up's."""
        return self.log.read_text(errors="replace").count('"POST /generate')

    def parts(self) -> list[str]:
        """Names of the part files in scratch."""
        return sorted(name for name in os.listdir(self.scratch) if name.startswith("hs-"))

    def scheduler_pids(self) -> list[int]:
        """Processes of the scheduler ranks, by their live markers."""
        return [marker.pid for marker in ControlFolder(self.scratch).live_markers(port=self.port)]

    def kill(self) -> None:
        """SIGKILL to every process of the launch: main, scheduler, detokenizer."""
        os.killpg(os.getpgid(self.scheduler_pids()[0]), signal.SIGKILL)
        wait_until(lambda: not self.scheduler_pids(), timeout_s=30, what="the schedulers' end")

    def stop(self) -> subprocess.CompletedProcess[str]:
        """`hs-server stop`."""
        return subprocess.run(
            [command("hs-server"), "stop", "--port", str(self.port)],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


ServerFactory = Callable[..., Server]


def launch_server(
    model: Path,
    scratch: Path,
    work: Path,
    *,
    options: Sequence[str] = (),
    sglang: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    port: int | None = None,
    check: bool = True,
) -> tuple[Server, subprocess.CompletedProcess[str]]:
    """`hs-server launch --profile cpu --detach` of `model`, its state and log below `work`.

    Raises:
        AssertionError: with `check`, the launch failed.
    """
    work.mkdir(parents=True, exist_ok=True)
    port = free_port() if port is None else port
    full = {**os.environ, "HS_STATE_DIR": str(work / "state"), **(environment or {})}
    log = work / f"server-{port}.log"
    argv = [command("hs-server"), "launch", "--model-path", str(model), "--profile", "cpu", "--detach"]
    argv += ["--port", str(port), "--log", str(log), "--startup-timeout", "240"]
    if "--no-capture" not in options:
        argv += ["--dump-dir", str(scratch)]
    done = subprocess.run(
        [*argv, *options, "--", *sglang], env=full, capture_output=True, text=True, check=False, timeout=280
    )
    if check:
        tail = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        assert done.returncode == 0, f"launch: exit {done.returncode}\n{done.stdout}\n{done.stderr}\n{tail}"
    return Server(port, model, scratch, log, full, done.stdout), done


@dataclass
class MoverProcess:
    """A running `hs-mover`."""

    scratch: Path
    dst: Path
    process: subprocess.Popen[bytes]
    log: Path
    options: Sequence[str] = field(default_factory=tuple)

    def stop(self) -> int:
        """SIGTERM and wait; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """SIGKILL and wait."""
        self.process.kill()
        self.process.wait(timeout=60)


def start_mover(scratch: Path, dst: Path, work: Path, *options: str) -> MoverProcess:
    """Start `hs-mover` and wait for its first heartbeat."""
    work.mkdir(parents=True, exist_ok=True)
    log = work / "mover.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [command("hs-mover"), "--src", str(scratch), "--dst", str(dst), *options], stdout=output, stderr=output
        )

    def beating() -> bool:
        assert process.poll() is None, log.read_text()
        state = ControlFolder(scratch).read_mover()
        return state is not None and state.pid == process.pid and state.alive(now_s())

    wait_until(beating, timeout_s=30, what="the mover's first heartbeat")
    return MoverProcess(scratch, dst, process, log, options)


@contextlib.contextmanager
def running_mover(scratch: Path, dst: Path, work: Path, *options: str) -> Iterator[MoverProcess]:
    """A mover for the length of a block; whatever is left of it is ended."""
    mover = start_mover(scratch, dst, work, *options)
    try:
        yield mover
    finally:
        if mover.process.poll() is None:
            mover.process.send_signal(signal.SIGCONT)
            mover.stop()
            assert mover.process.returncode == 0, mover.log.read_text()


def client_argv(prompts: Path | Sequence[Path], server: Server, *options: str) -> list[str]:
    """`hs-client run` against `server`."""
    files = [prompts] if isinstance(prompts, Path) else list(prompts)
    return [
        command("hs-client"),
        "run",
        *map(str, files),
        "--server",
        server.url,
        "--scratch",
        str(server.scratch),
        *options,
    ]


def start_client(prompts: Path, server: Server, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """`hs-client run` in the background, its output appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            client_argv(prompts, server, *options), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )


def run_client(
    prompts: Path | Sequence[Path], server: Server, *options: str, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """`hs-client run` to its end."""
    return subprocess.run(
        client_argv(prompts, server, *options),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
