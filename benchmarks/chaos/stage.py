"""The three programs, real ones, and what is done to them. Needs `tests/support` on the import path."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.schedule import Event, Kind, Round
from chain import Server, client_argv, launch_server
from hs_formats.control import ControlFolder, now_s
from tiny_models import tiny_model

__all__ = ["BOUNDARIES", "MODEL", "Stage"]

MODEL = "tiny-llama"
BOUNDARIES = (1, 4, 7)

_ODD_MOVER = str(Path(__file__).with_name("odd_mover.py"))
_CLIENT = (
    *("--concurrency", "8", "--max-retries", "3", "--progress-interval", "60"),
    *("--part-timeout", "10", "--mover-timeout", "60", "--server-timeout", "120"),
)
_ENDINGS = {0, 1, 3, 4, 5, 130, 143}
"""How a client may end while others are away; anything else is a fault."""

_PATIENCE_S = 60.0


class Stage:
    """Server, mover and client of one chaos run.

    Args:
        scratch: tmpfs that the server writes to.
        dst: where datasets are stored.
        work: for logs and the launcher's notes.

    Attributes:
        kills: programs killed with SIGKILL while they were alive, by name.
        endings: how clients ended by themselves, by exit code.
        problems: what must not happen.
    """

    def __init__(self, scratch: Path, dst: Path, work: Path) -> None:
        self.scratch, self.dst, self.work = scratch, dst, work
        self.kills: Counter[str] = Counter()
        self.endings: Counter[str] = Counter()
        self.problems: list[str] = []
        self._round = Round(0, 0, (), deaf=False, sync_s=0.0)
        self._prompts = work / "prompts.jsonl"
        self._server: Server | None = None
        self._mover: subprocess.Popen[bytes] | None = None
        self._client: subprocess.Popen[bytes] | None = None
        self._log_began = 0

    # -- one round

    def begin(self, planned: Round, prompts: Path) -> None:
        """Have everything run for a round."""
        self._round, self._prompts = planned, prompts
        if self._server is None:
            self._start_server(None)
        self._end_mover()
        self._start_mover()
        self._start_client()

    def wait_for(self, event: Event) -> bool:
        """Until the moment of `event`; False when the round's work is all done before."""
        end_s = time.monotonic() + _PATIENCE_S
        while self.done() < event.at_row and time.monotonic() < end_s:
            if not self._work_left():
                return False
            time.sleep(0.01)
        time.sleep(event.delay_s)
        return self._work_left()

    def play(self, event: Event) -> None:
        """Do it, and bring back who went."""
        name = event.kind.removeprefix("kill ").removeprefix("stop ").removeprefix("terminate ")
        if event.kind.startswith("kill "):
            self._kill(event.kind, event.hold_s)
        elif event.kind.startswith("stop "):
            self._freeze(name, event.hold_s)
        elif event.kind == "terminate client":
            self._terminate_client()
        elif event.kind == "terminate mover":
            self._end_mover()
            self._start_mover()
        else:
            with _full(self.scratch if event.kind == "full scratch" else self.dst):
                time.sleep(event.hold_s)

    def finish(self) -> None:
        """Nothing happens any more: the client must get everything done, and scratch must become empty."""
        code: int | None = None
        for _ in range(6):
            if self._client is None:
                self._start_client()
            self._see_to_mover()
            code = self._wait_client(300.0)
            if code == 0:
                break
        else:
            self.problems.append(f"round {self._round.number}: the client does not finish in peace: exit {code}")
        end_s = time.monotonic() + _PATIENCE_S
        while (left := self._left()) and time.monotonic() < end_s:
            time.sleep(0.1)
        if left:
            self.problems.append(f"round {self._round.number}: scratch keeps {len(left)} files, such as {left[0]}")
        for log in self.logs():
            if b"Traceback" in log.read_bytes():
                self.problems.append(f"round {self._round.number}: a traceback in {log.name}")

    def done(self) -> int:
        """Samples of the round that its ledgers call done."""
        total = 0
        for path in (self.dst / self._name / "ledger").glob("*.jsonl"):
            with contextlib.suppress(OSError):
                total += path.read_bytes().count(b'"type":"done"')
        return total

    def logs(self) -> list[Path]:
        """Logs of client and mover of the round."""
        return [path for path in (self._log("client"), self._log("mover")) if path.exists()]

    def close(self) -> None:
        """End everything."""
        for process in (self._client, self._mover):
            if process is not None:
                process.kill()
                process.wait()
        if self._server is not None:
            for pid in self._server.scheduler_pids():
                os.kill(pid, signal.SIGCONT)
            self._server.stop()

    # -- who runs

    @property
    def _name(self) -> str:
        return self._prompts.stem

    def _log(self, who: str) -> Path:
        return self.work / f"{self._name}-{who}.log"

    def _start_server(self, port: int | None) -> None:
        self._server, _ = launch_server(
            tiny_model(MODEL),
            self.scratch,
            self.work,
            options=["--boundaries", ",".join(map(str, BOUNDARIES))],
            sglang=["--chunked-prefill-size", "16"],
            port=port,
        )

    def _start_mover(self) -> None:
        odds = [str(int(self._round.deaf)), str(self._round.sync_s)]
        command = [sys.executable, _ODD_MOVER, *odds, "--src", str(self.scratch), "--dst", str(self.dst)]
        with self._log("mover").open("ab") as log:
            self._mover = subprocess.Popen(command, stdout=log, stderr=log)

    def _start_client(self) -> None:
        """Once a mover lives: a run that finds none refuses, which is no matter of this case."""
        assert self._server is not None
        control, end_s = ControlFolder(self.scratch), time.monotonic() + _PATIENCE_S
        while (state := control.read_mover()) is None or not state.alive(now_s()):
            self._see_to_mover()
            if time.monotonic() > end_s:
                self.problems.append(f"round {self._round.number}: no mover comes up")
                break
            time.sleep(0.05)
        with self._log("client").open("ab") as log:
            self._log_began = log.tell()
            self._client = subprocess.Popen(
                client_argv(self._prompts, self._server, "--dataset", self._name, *_CLIENT),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def _work_left(self) -> bool:
        """Whether the client still has something to do; one that gave up is started again."""
        assert self._client is not None
        code = self._client.poll()
        if code is None:
            return True
        self._note_ending(code)
        if code == 0:
            self._client = None
            return False
        self._start_client()
        return True

    def _wait_client(self, timeout_s: float, *, also_fine: int = 0) -> int:
        assert self._client is not None
        try:
            code = self._client.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.problems.append(f"round {self._round.number}: the client did not end within {timeout_s:.0f} s")
            self._client.kill()
            code = self._client.wait()
        else:
            self._note_ending(code, also_fine=also_fine)
        self._client = None
        return code

    def _note_ending(self, code: int, *, also_fine: int = 0) -> None:
        self.endings[str(code)] += 1
        if code not in {*_ENDINGS, also_fine}:
            self.problems.append(f"round {self._round.number}: the client ended with {code}")

    def _see_to_mover(self) -> None:
        if self._mover is not None and (code := self._mover.poll()) is not None:
            self.problems.append(f"round {self._round.number}: the mover ended by itself with {code}")
            self._start_mover()

    def _left(self) -> list[str]:
        return sorted(name for name in os.listdir(self.scratch) if name != ".hs")

    # -- what is done to them

    def _kill(self, kind: Kind, away_s: float) -> None:
        parts = {"kill client and mover": ("client", "mover"), "kill all": ("client", "mover", "server")}
        killed = parts.get(kind, (kind.removeprefix("kill "),))
        for who in killed:
            if who in ("server", "scheduler"):
                self._kill_server(whole=who == "server")
            else:
                process = self._client if who == "client" else self._mover
                assert process is not None
                self.kills[who] += process.poll() is None
                process.kill()
                process.wait()
        time.sleep(away_s)
        if "mover" in killed:
            self._start_mover()
        if {"server", "scheduler"} & set(killed):
            assert self._server is not None
            self._server.stop()  # what is left of it
            self._start_server(self._server.port)
        if "client" in killed:
            self._start_client()

    def _kill_server(self, *, whole: bool) -> None:
        assert self._server is not None
        pids = self._server.scheduler_pids()
        if not pids:
            self.problems.append(f"round {self._round.number}: the server was gone before it was killed")
            return
        if whole:
            os.killpg(os.getpgid(pids[0]), signal.SIGKILL)
        else:
            os.kill(pids[0], signal.SIGKILL)
        self.kills["server"] += 1
        end_s = time.monotonic() + _PATIENCE_S
        while self._server.scheduler_pids() and time.monotonic() < end_s:
            time.sleep(0.05)

    def _freeze(self, who: str, seconds: float) -> None:
        assert self._server is not None
        process = {"client": self._client, "mover": self._mover}.get(who)
        pids = self._server.scheduler_pids() if process is None else [process.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def _terminate_client(self) -> None:
        assert self._client is not None
        spoke = self._log("client").stat().st_size > self._log_began  # before that Python itself answers the signal
        self._client.terminate()
        if self._wait_client(_PATIENCE_S, also_fine=0 if spoke else -signal.SIGTERM) != 0:
            self._start_client()

    def _end_mover(self) -> None:
        """SIGTERM, after which it finishes what it has in hand and exits with 0."""
        if self._mover is None:
            return
        state = ControlFolder(self.scratch).read_mover()
        ready = state is not None and state.pid == self._mover.pid  # before that Python itself answers the signal
        self._mover.terminate()
        try:
            code = self._mover.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
            self._mover.kill()
            self._mover.wait()
        if code != 0 and (ready or code != -signal.SIGTERM):
            self.problems.append(f"round {self._round.number}: the mover answered SIGTERM with {code}")


@contextlib.contextmanager
def _full(folder: Path) -> Iterator[None]:
    """A file system without a free byte, as long as nobody frees some."""
    ballast = folder / "ballast"
    try:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        yield
    finally:
        ballast.unlink(missing_ok=True)
