"""Runs the `hs-server` command line in its own state folder, with the fake SGLang or the real one."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAKE_SGLANG", "HsServer", "free_port", "node_ports", "wait_for_line"]

FAKE_SGLANG = Path(__file__).parent / "fake_sglang"


def free_port() -> int:
    """A port that nobody listens on, below those that connections are given at random."""
    ports = list(range(21000, 22000))
    random.shuffle(ports)
    for port in ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port from 21000 to 21999")


def node_ports(nodes: int) -> str:
    """A port that ends in ``{node}``, free for nodes 0 to `nodes` - 1, of which there are ten at most."""
    while True:
        tens = free_port() // 10
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for node in range(nodes):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", 10 * tens + node))
            return f"{tens}{{node}}"


@dataclass(slots=True)
class HsServer:
    """`hs-server` as a user runs it; `environment` is added to the test's own."""

    state: Path
    environment: Mapping[str, str] = field(default_factory=dict)

    def full_environment(self) -> dict[str, str]:
        """The environment that commands run in."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SGLANG_", "NCCL_"))}
        # Rings of the default size may be more than a busy test machine has left.
        ours = {"HS_STATE_DIR": str(self.state), "SGLANG_HS_RING_BYTES": str(64 << 20)}
        return inherited | ours | dict(self.environment)

    def run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        # A detached server keeps no pipe of ours: its output goes to its log.
        return subprocess.run(
            self._command(arguments),
            env=self.full_environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def start(self, *arguments: str, output: Path, ignore_hup: bool = False) -> subprocess.Popen[bytes]:
        """Start a command that stays, with its output in a file."""
        command = self._command(arguments)
        with output.open("wb") as stream:
            return subprocess.Popen(
                ["nohup", *command] if ignore_hup else command,
                env=self.full_environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @staticmethod
    def _command(arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "hs_server.cli", *arguments]


def wait_for_line(file: Path, start: str, *, timeout_s: float = 30.0) -> str:
    """The first line of `file` that begins with `start`, once it is there."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for line in file.read_text().splitlines():
            if line.startswith(start):
                return line
        time.sleep(0.05)
    raise AssertionError(f"no line {start!r} in {file} after {timeout_s} s:\n{file.read_text()}")
