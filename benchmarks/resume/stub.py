"""A stand-in for a capturing server: it holds a start-up marker and takes requests, of which it answers none."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hs_formats.control import ControlFolder, Marker

__all__ = ["Stub", "serving"]

_SLOTS, _HIDDEN = 4, 4096


class Stub:
    """What the stand-in has seen. `first_s`: when the first request came, on the monotonic clock."""

    def __init__(self) -> None:
        self.port = 0
        self.first_s = 0.0
        self.came = threading.Event()
        self.ended = threading.Event()

    def expect(self) -> None:
        """Wait for the next first request."""
        self.came.clear()

    def take(self) -> None:
        """A request has come."""
        if not self.came.is_set():
            self.first_s = time.monotonic()
            self.came.set()


@contextlib.contextmanager
def serving(scratch: Path, tokenizer: Path) -> Iterator[Stub]:
    """Serve until the block ends."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            found = {"model_path": "stub", "tokenizer_path": str(tokenizer), "is_generation": True}
            body = json.dumps(found if self.path == "/model_info" else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            stub.take()
            stub.ended.wait()

    class Http(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client is killed in the end."""

    control = ControlFolder(scratch)
    control.create()
    server = Http(("127.0.0.1", 0), Handler)
    stub.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    held = control.hold_marker(_marker(stub.port, tokenizer))
    try:
        yield stub
    finally:
        stub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
        held.release()


def _marker(port: int, tokenizer: Path) -> Marker:
    return Marker(
        nonce="feedfacefeedface",
        pid=os.getpid(),
        rank=0,
        tp_size=1,
        dp_rank=0,
        dp_size=1,
        attn_tp_rank=0,
        attn_tp_size=1,
        writers="first",
        expected_ranks=[0],
        host="127.0.0.1",
        port=port,
        model="stub",
        tokenizer=str(tokenizer),
        config_hash="c0ffee",
        num_layers=32,
        boundaries=[2, 16, 29],
        dtype="bfloat16",
        hidden_size=_HIDDEN,
        bytes_per_token=_SLOTS * _HIDDEN * 2,
        context_length=8192,
        chunk_size=8192,
        sglang_version="0.0.0",
        hs_version="0.0.0",
        capture_mode="plugin",
    )
