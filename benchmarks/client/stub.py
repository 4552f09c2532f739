"""A server of straw: answers every POST at once with what SGLang would say. ``python -m benchmarks.client.stub PORT``.

It does as little as it can, so that two cores measure the client and not the stub.
"""

from __future__ import annotations

import asyncio
import json
import sys

__all__ = ["ANSWER", "main"]

ANSWER = {
    "text": "",
    "output_ids": [],
    "meta_info": {
        "id": "hs-00000001-00000000-00",
        "finish_reason": {"type": "length", "length": 0},
        "prompt_tokens": 2000,
        "completion_tokens": 0,
        "cached_tokens": 0,
        "weight_version": "default",
        "e2e_latency": 0.05,
    },
}
_BODY = json.dumps(ANSWER).encode()
_SAID = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)


class _Stub(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._held = b""
        self._body_left = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while True:
            if self._body_left < 0:
                head, found, rest = self._held.partition(b"\r\n\r\n")
                if not found:
                    return
                lengths = [line[15:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                self._held, self._body_left = rest, int(lengths[0]) if lengths else 0
            if len(self._held) < self._body_left:
                return
            self._held, self._body_left = self._held[self._body_left :], -1
            self._transport.write(_SAID)  # type: ignore[attr-defined]


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Stub, "127.0.0.1", port, backlog=4096)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await server.serve_forever()


def main() -> None:
    """Serve until killed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(_serve(int(sys.argv[1])))
    else:
        uvloop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
