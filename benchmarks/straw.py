"""What the servers of straw share: HTTP on an event loop with as little work as can be, and a start-up marker.

They do as little as they can, so that two cores measure the client and not them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from hs_formats.control import Marker

__all__ = ["NONCE", "Straw", "http_ok", "marker", "serve_until_killed"]

NONCE = "feedfacefeedface"

_HIDDEN = 4096
_SLOTS = 4

Answer = Callable[[bytes, bytes], bytes]
"""Path and body of a request → all bytes of its response."""


def http_ok(body: Any) -> bytes:
    """A whole response with `body` as JSON."""
    data = json.dumps(body).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(data) + data


class Straw(asyncio.Protocol):
    """One connection, each of its requests answered at once."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._held = b""
        self._path = b""
        self._body_left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # that of a TCP connection, maybe uvloop's

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._held += data
        while True:
            if self._body_left < 0:
                head, found, rest = self._held.partition(b"\r\n\r\n")
                if not found:
                    return
                lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                self._path = head.split(b" ", 2)[1]
                self._held, self._body_left = rest, int(lengths[0]) if lengths else 0
            if len(self._held) < self._body_left:
                return
            body, self._held = self._held[: self._body_left], self._held[self._body_left :]
            self._body_left = -1
            self._transport.write(self._answer(self._path, body))


def serve_until_killed(port: int, answer: Answer, *tasks: Callable[[], Any]) -> None:
    """Serve on the loopback, say ``ready`` on standard output, run coroutine functions `tasks` beside it."""

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Straw(answer), "127.0.0.1", port, backlog=4096)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(server.serve_forever(), *(task() for task in tasks))

    try:
        import uvloop
    except ImportError:
        asyncio.run(serve())
    else:
        uvloop.run(serve())


def marker(port: int, tokenizer: str) -> Marker:
    """Of this process, as a server on `port` that captures three layers of a model with 32."""
    return Marker(
        nonce=NONCE,
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
        tokenizer=tokenizer,
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
