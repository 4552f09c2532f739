"""A mover process that stores to a bucket, for tests that kill it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hs_formats.control import ControlFolder, now_s
from movers import MOVER, wait_for

__all__ = ["Mover"]


class Mover:
    """A mover process that can be killed and started again."""

    def __init__(self, scratch: Path, url: str, environment: dict[str, str], log: Path) -> None:
        self.scratch = scratch
        self.log = log
        self._argv = [*MOVER, "--src", str(scratch), "--dst", url]
        self._environment = environment
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            process = subprocess.Popen(self._argv, env=self._environment, stdout=output, stderr=output)

        def beating() -> bool:
            assert process.poll() is None, self.log.read_text()
            state = ControlFolder(self.scratch).read_mover()
            return state is not None and state.pid == process.pid and state.alive(now_s())

        try:
            wait_for(beating, timeout_s=60)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def kill(self) -> None:
        """SIGKILL, and a new one."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def end(self) -> None:
        """SIGTERM."""
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(60) == 0, self.log.read_text()
