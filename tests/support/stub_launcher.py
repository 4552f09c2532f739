"""Stands in for `hs-server`: a "server" is a process that holds a marker in scratch, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from hs_formats.control import ControlFolder
from markers import make_marker

__all__ = ["write_stub"]

_SUPPORT = Path(__file__).parent


def write_stub(path: Path) -> Path:
    """An executable that behaves like it."""
    code = f"import sys\nsys.path.insert(0, {str(_SUPPORT)!r})\nfrom stub_launcher import main\nmain(sys.argv[1:])\n"
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(0o755)
    return path


def _value(words: list[str], name: str, default: str = "") -> str:
    return words[words.index(name) + 1] if name in words else default


def main(words: list[str]) -> None:
    """`launch`, with --fail CODE or --slow SECONDS; `serve`; `status`; `stop`."""
    port = int(_value(words, "--port"))
    state = Path(os.environ["HS_STATE_DIR"]) / f"stub-{port}"
    if words[0] == "status":
        sys.exit(0 if state.exists() and Path("/proc", state.read_text()).exists() else 4)
    if words[0] == "stop":
        if not state.exists():
            sys.exit(4)
        os.kill(int(state.read_text()), signal.SIGTERM)
        state.unlink()
        time.sleep(0.5)
        return
    scratch = Path(_value(words, "--dump-dir"))
    if words[0] == "serve":
        control = ControlFolder(scratch)
        control.create()
        state.write_text(str(os.getpid()))
        nonce = os.urandom(8).hex()
        with_marker = control.hold_marker(make_marker(nonce=nonce, pid=os.getpid(), port=port))
        signal.sigwait([signal.SIGTERM])
        with_marker.release()
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    time.sleep(float(_value(words, "--slow", "0")))
    if code := int(_value(words, "--fail", "0")):
        print("launching\nerror: it does not suit me\n  have another", file=sys.stderr)
        sys.exit(code)
    here = [sys.argv[0], "serve", "--port", str(port), "--dump-dir", str(scratch)]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # so that `serve` can wait for it
    subprocess.Popen(here, start_new_session=True, stdin=subprocess.DEVNULL)
    while not ControlFolder(scratch).live_markers(port=port):
        time.sleep(0.05)
    print("ready")
