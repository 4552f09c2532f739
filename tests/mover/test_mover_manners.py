"""How the mover shows itself: on a terminal, to Prometheus, to systemd, in `hs-mover status`."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import socket
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from golden_files import MOVER as STATE
from hs_formats.notify import Notifier
from hs_mover.status import describe
from hs_mover.view import caption
from movers import MOVER, mover_process, scratch_parts, wait_for
from parts import drop_part, register

RUN = "00c0ffee"


def rid(row: int) -> str:
    return f"hs-{RUN}-{row:08d}-00"


@pytest.fixture
def src(tmp_path: Path) -> Path:
    register(tmp_path / "scratch", RUN, "set")
    return tmp_path / "scratch"


class Terminal:
    """What was written to a pseudo-terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()

    def shows(self, pattern: str) -> bool:
        with contextlib.suppress(OSError):  # nothing there now, or the other end is closed
            while data := os.read(self._fd, 65536):
                self._data += data
        return re.search(pattern, self._data.decode("utf-8", "replace")) is not None


@contextlib.contextmanager
def on_a_terminal(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """A mover whose standard error is a terminal."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (40, 160))
    process = subprocess.Popen([*MOVER, *arguments], stderr=slave)
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield process, Terminal(master)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


def test_a_terminal_shows_a_bar_and_lines_above_it(src: Path, tmp_path: Path) -> None:
    (src / "foreign").write_bytes(b"")
    with on_a_terminal("--src", str(src), "--dst", str(tmp_path / "data")) as (process, terminal):
        wait_for(lambda: terminal.shows(r"scratch +\d+%\|.*out \d+ MB/s, 0 parts, default"))
        wait_for(lambda: terminal.shows(r"leaving 'foreign' alone: not the name of a part"))
        process.terminate()
        wait_for(lambda: terminal.shows(r"stopped; "))
        assert process.wait(20) == 0


def test_captions() -> None:
    state = replace(STATE, state="moving", reason="", in_bytes_per_s=30e6, out_bytes_per_s=20e6)
    assert caption(state) == "in 30 MB/s, out 20 MB/s, 3 parts, 12 s to drain, zstd"
    assert caption(STATE).endswith("HOLDING: destination full")
    assert "to drain" not in caption(replace(state, drain_s=-1.0))


def test_status_says_when_the_backlog_will_be_gone() -> None:
    assert "drain     12 s at the present rate" in describe(STATE, 1235.0, unclaimed=[])
    assert "drain     nothing is being moved now" in describe(replace(STATE, drain_s=-1.0), 1235.0, unclaimed=[])
    assert "drain     nothing waits" in describe(replace(STATE, backlog_parts=0), 1235.0, unclaimed=[])
    text = "\n".join(describe(STATE, 1235.0, unclaimed=[]))
    assert "left      1 files" in text


def test_metrics(src: Path, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client")
    drop_part(src, rid(1), 0, 4, 4)
    drop_part(src, rid(2), 0, 4, 4, data=b"cut")
    log = tmp_path / "log"
    with mover_process(src, tmp_path / "data", "--metrics-port", "0", log=log):
        wait_for(lambda: not scratch_parts(src))
        wait_for(lambda: log.exists() and "metrics at http" in log.read_text())
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+/metrics", log.read_text())
        text = urllib.request.urlopen(url, timeout=10).read().decode()
        port = url.rsplit(":", 1)[1].split("/")[0]
        second = subprocess.run(
            [*MOVER, "--src", str(tmp_path / "other"), "--dst", str(tmp_path / "data"), "--metrics-port", port],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    label = f'scratch="{src}"'
    assert f"hs_mover_moved_parts_total{{{label}}} 2.0" in text
    assert f"hs_mover_quarantined_parts_total{{{label}}} 1.0" in text
    assert f'hs_mover_state{{{label},state="moving"}} 1.0' in text
    assert f'hs_mover_codec{{codec="default",{label}}} 1.0' in text
    used = re.search(rf"hs_mover_used_bytes{{{label}}} ([0-9.e+]+)", text)
    assert used is not None
    assert float(used[1]) > 0
    assert second.returncode == 3
    assert f"error: --metrics-port {port}: Address already in use; choose another port" in second.stderr


def test_metrics_without_the_extra(src: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['prometheus_client'] = None\nfrom hs_mover.cli import main; main()"
    command = [sys.executable, "-c", code, "--src", str(src), "--dst", str(tmp_path / "data"), "--metrics-port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "error: --metrics-port needs prometheus-client: pip install 'hs-extract[metrics]'" in result.stderr


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_names_of_others_do_not_act_on_the_terminal(src: Path, tmp_path: Path, log_format: str) -> None:
    (src / "evil\x1b]0;mine\x07").write_bytes(b"x")
    dst = tmp_path / "data\x1b]0;mine\x07"
    command = [*MOVER, "--src", str(src), "--dst", str(dst), "--once", "--log-format", log_format]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
    assert "]0;mine" in said
    assert not {*"\x1b\x07"} & {*said}


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_told(src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@hs-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address.replace("@", "\0"))
        listener.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        with mover_process(src, tmp_path / "data"):
            said = [listener.recv(4096).decode() for _ in range(3)]
        while "STOPPING=1" not in said:
            said.append(listener.recv(4096).decode())
    assert said[0] == "READY=1"
    assert re.fullmatch(r"WATCHDOG=1\nSTATUS=.*0 parts moved.*", said[1])


def test_no_systemd_and_one_that_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).ready()
    gone = Notifier({"NOTIFY_SOCKET": str(tmp_path / "nothing")})
    gone.ready()
    gone.alive("x")
    assert len([message for message in caplog.messages if "cannot notify systemd" in message]) == 1
