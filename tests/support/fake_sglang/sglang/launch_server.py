"""`python -m sglang.launch_server` of the fake: answers /health, leaves markers, and misbehaves as told.

`FAKE_SGLANG` holds words: `mute` (no marker), `one-rank` (a marker of rank 0 of 2 only), `refuse` (the capture's
refusal in the log, then exit), `die` (exit while starting), `usage` (argparse's exit), `die-later` (exit 1 s after it
was ready), `never` (never healthy), `stubborn` (ignores SIGTERM, and so do its children), `stray` (a child in a session
of its own).
"""

from __future__ import annotations

import argparse
import http.server
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from hs_formats.control import ControlFolder, HeldMarker, Marker

_MODES = frozenset(os.environ.get("FAKE_SGLANG", "").split())
_SLEEPER = "import signal, time; {ignore}time.sleep(600)"
_held: list[HeldMarker] = []


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if "never" in _MODES else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def _leave_marker(*, port: int, tp_size: int) -> None:
    folder = os.environ.get("SGLANG_HS_DUMP_DIR")
    if not folder or "mute" in _MODES:
        return
    control = ControlFolder(Path(folder))
    control.create()
    for rank in range(1 if "one-rank" in _MODES else tp_size):
        marker = Marker(
            nonce=os.environ["SGLANG_HS_NONCE"],
            pid=os.getpid(),
            rank=rank,
            tp_size=tp_size,
            dp_rank=0,
            dp_size=1,
            attn_tp_rank=rank,
            attn_tp_size=tp_size,
            writers="first",
            expected_ranks=[0],
            host="127.0.0.1",
            port=port,
            model="fake",
            tokenizer="fake",
            config_hash="0" * 32,
            num_layers=8,
            boundaries=[int(b) for b in os.environ.get("SGLANG_HS_BOUNDARIES", "2,4,5").split(",")],
            dtype="float32",
            hidden_size=16,
            bytes_per_token=256,
            context_length=64,
            chunk_size=16,
            sglang_version="0",
            hs_version="0",
            capture_mode="plugin",
        )
        _held.append(control.hold_marker(marker))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tp-size", type=int, default=1)
    arguments, _ = parser.parse_known_args()
    print("fake sglang:", *sys.argv[1:], flush=True)
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); " if "stubborn" in _MODES else ""
    sleeper = [sys.executable, "-c", _SLEEPER.format(ignore=ignore)]
    subprocess.Popen(sleeper)
    if "stray" in _MODES:
        subprocess.Popen(sleeper, start_new_session=True)
    if "stubborn" in _MODES:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "refuse" in _MODES:
        print("RuntimeError: hs-extract refuses to capture: moon=full: states would howl; wait a week", flush=True)
        sys.exit(1)
    if "usage" in _MODES:
        parser.error("no such flag")
    if "die" in _MODES:
        print("fake sglang: out of luck", flush=True)
        sys.exit(7)
    _leave_marker(port=arguments.port, tp_size=arguments.tp_size)
    if "die-later" in _MODES:
        threading.Timer(1.0, os._exit, (9,)).start()
    http.server.ThreadingHTTPServer((arguments.host, arguments.port), _Handler).serve_forever()


if __name__ == "__main__":
    main()
