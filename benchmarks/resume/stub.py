"""A stand-in for a capturing server: it holds a start-up marker and takes requests, of which it answers none."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.straw import marker
from hs_formats.control import ControlFolder

__all__ = ["Stub", "serving"]


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
    held = control.hold_marker(marker(stub.port, str(tokenizer)))
    try:
        yield stub
    finally:
        stub.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
        held.release()
