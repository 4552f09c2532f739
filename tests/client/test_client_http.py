"""What the client makes of every way in which a server can answer or not answer, with httpx and with its successor."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import numpy as np
import pytest

from hs_client import _http
from hs_client._http import Busy, Denied, Lost, Refused, RequestError, ServerClient, Unreachable, shared_tls
from hs_formats.errors import UsageError

pytestmark = pytest.mark.anyio

IDS = np.arange(5, dtype=np.int32)
GOOD = {
    "text": "",
    "meta_info": {"finish_reason": {"type": "length", "length": 0}, "prompt_tokens": 5, "cached_tokens": 0},
}


@pytest.fixture(params=_http.LIBRARIES, autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip(request.param)
    monkeypatch.setenv("HS_HTTP", request.param)
    shared_tls()
    return str(request.param)


def answer(status: int, body: Any, *, content_type: str = "application/json") -> bytes:
    data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return b"HTTP/1.1 %d Said\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        status,
        content_type.encode(),
        len(data),
        data,
    )


class Raw:
    """A server that reads requests and sends back the bytes it was told; None closes the connection without a word.

    `drip`: what is sent again and again after the first answer, every `drip_s`.
    """

    def __init__(
        self, say: Callable[[int], bytes | None], *, after_s: float = 0.0, drip: bytes = b"", drip_s: float = 0.0
    ) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._say = say
        self._drip = drip
        self._drip_s = drip_s
        self._after = threading.Event()
        self._after_s = after_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as file:
            while head := self._head(file):
                lengths = [line[15:] for line in head.lower().splitlines() if line.startswith(b"content-length:")]
                file.read(int(lengths[0]) if lengths else 0)
                number = len(self.heads)
                self.heads.append(head)
                self._after.wait(self._after_s)
                said = self._say(number)
                if said is None:
                    return
                connection.sendall(said)
                while not number and self._drip and not self._after.wait(self._drip_s):
                    connection.sendall(self._drip)
                if not said.startswith(b"HTTP/1.1"):
                    return

    def _head(self, file: Any) -> bytes:
        lines: list[bytes] = []
        while (line := file.readline()) not in (b"", b"\r\n"):
            lines.append(line)
        return b"".join(lines)

    def close(self) -> None:
        self._after.set()
        self._socket.close()


@contextlib.contextmanager
def raw(said: bytes | Callable[[int], bytes | None] | None, **knobs: Any) -> Iterator[Raw]:
    server = Raw(said if callable(said) else lambda _: said, **knobs)
    try:
        yield server
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connected(url: str, *, read_timeout_s: float = 5.0, key: str = "") -> AsyncIterator[ServerClient]:
    client = ServerClient(url, tls=shared_tls(), read_timeout_s=read_timeout_s, key=key)
    try:
        yield client
    finally:
        await client.close()


PAGE = "<!DOCTYPE html><html><head><title>It works!</title></head><body>nginx</body></html>"


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (answer(400, {"error": {"message": "The input is too long."}}), Refused, "HTTP 400: The input is too long."),
        (answer(400, {"object": "error", "message": "bad key", "code": 400}), Refused, "HTTP 400: bad key"),
        (answer(400, {"error": "unknown sampling parameter"}), Refused, "HTTP 400: unknown sampling parameter"),
        (answer(422, {"detail": [{"loc": ["body"]}]}), Refused, "HTTP 422: [{'loc': ['body']}]"),
        (answer(404, PAGE, content_type="text/html"), Refused, "HTTP 404: a web page, so this is no SGLang server"),
        (answer(401, {"error": "Unauthorized"}), Denied, "HTTP 401: Unauthorized"),
        (answer(403, ""), Denied, "HTTP 403: no words"),
        (answer(503, {"object": "error", "message": "The request queue is full."}), Busy, "queue is full"),
        (answer(429, "slow down"), Busy, "HTTP 429: slow down"),
        (answer(500, "Internal Server Error"), Lost, "HTTP 500: Internal Server Error"),
        (answer(302, ""), Lost, "HTTP 302"),
        (answer(200, PAGE), Lost, "not one of SGLang's: a web page"),
        (answer(200, {"text": "no meta"}), Lost, "not one of SGLang's"),
        (answer(200, GOOD)[:-9], Lost, ""),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Lost, ""),
        (None, Lost, ""),
    ],
)
async def test_an_answer_tells_whether_work_may_have_begun(
    said: bytes | None, kind: type[RequestError], words: str
) -> None:
    cut = said is not None and said.startswith(b"HTTP/1.1 200") and said.endswith(b'"cached')
    with raw(said) as server:
        async with connected(server.url, read_timeout_s=0.5 if cut else 5.0) as client:
            with pytest.raises(kind) as caught:
                await client.generate("hs-0000000a-00000000-00", IDS)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_an_answer_is_read_and_the_connection_kept() -> None:
    with raw(answer(200, GOOD)) as server:
        async with connected(server.url, key="sesame") as client:
            for _ in range(5):
                got = await client.generate("hs-0000000a-00000000-00", IDS)
                assert (got.finish_type, got.prompt_tokens, got.cached_tokens) == ("length", 5, 0)
        assert server.connections == 1
        head = server.heads[0].decode().lower()
        assert head.startswith("post /generate http/1.1")
        assert f"host: {server.url.removeprefix('http://')}" in head
        assert "authorization: bearer sesame" in head
        assert "content-type: application/json" in head


async def test_an_abort_inside_200_is_an_answer() -> None:
    aborted = {"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}, "prompt_tokens": 5}}
    with raw(answer(200, aborted)) as server:
        async with connected(server.url) as client:
            got = await client.generate("hs-0000000a-00000000-00", IDS)
    assert (got.finish_type, got.finish_reason) == ("abort", "gone")


async def test_a_generated_answer_has_its_ids_and_what_ended_it() -> None:
    meta = {"finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 5, "completion_tokens": 3}
    with raw(answer(200, {"text": "?", "output_ids": [7, 8, 2], "meta_info": meta})) as server:
        async with connected(server.url) as client:
            got = await client.answer("hsgen-0000000a-0000000000", IDS, {"max_new_tokens": 9})
        head = server.heads[0].decode()
    assert (got.output_ids, got.finish_type, got.matched, got.prompt_tokens, got.counted) == (
        [7, 8, 2],
        "stop",
        2,
        5,
        3,
    )
    assert head.startswith("POST /generate HTTP/1.1")


async def test_a_connection_that_is_gone_before_it_is_used_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop has no socket any more to be asked for its peer, and anyio asks."""
    with raw(answer(200, GOOD)) as server:
        async with connected(server.url) as client:

            async def broken(request: object) -> None:
                raise AttributeError("'NoneType' object has no attribute 'getpeername'")

            with monkeypatch.context() as patched:
                patched.setattr(client._transport, "handle_async_request", broken)
                with pytest.raises(Lost, match="broke as soon as it was there"):
                    await client.generate("hs-0000000a-00000000-00", IDS)
            got = await client.generate("hs-0000000a-00000000-00", IDS)
            assert got.prompt_tokens == 5


async def test_nobody_there_means_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "gopher://127.0.0.1:1"):
        async with connected(url) as client:
            with pytest.raises(Unreachable):
                await client.generate("hs-0000000a-00000000-00", IDS)


async def test_silence_ends_with_the_time_out_and_the_client_goes_on() -> None:
    with raw(answer(200, GOOD), after_s=30) as server:
        async with connected(server.url, read_timeout_s=0.2) as client:
            for _ in range(2):
                with pytest.raises(Lost, match="no answer within the time-out"):
                    await client.generate("hs-0000000a-00000000-00", IDS)
        assert server.connections == 2


ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("status", [200, 400])
async def test_an_answer_that_is_nested_too_deeply_is_none(status: int) -> None:
    deep = '{"error": ' * 100_000 + "1" + "}" * 100_000
    with raw(answer(status, deep)) as server:
        async with connected(server.url) as client:
            with pytest.raises(Refused if status == 400 else Lost, match=r"no words|not one of SGLang's"):
                await client.generate("hs-0000000a-00000000-00", IDS)
            with pytest.raises(RequestError):
                await client.server_info()


async def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_MAX_ANSWER_BYTES", 1 << 20)
    piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    with raw(lambda number: answer(200, GOOD) if number else ENDLESS, drip=piece) as server:
        async with connected(server.url) as client:
            with pytest.raises(Lost, match="longer than 1,048,576 bytes, so this is no SGLang server"):
                await client.generate("hs-0000000a-00000000-00", IDS)
            assert (await client.generate("hs-0000000a-00000001-00", IDS)).prompt_tokens == 5


@pytest.mark.parametrize(
    ("said", "drip"), [(ENDLESS, b"1\r\nx\r\n"), (b"HTTP/1.1 200 OK\r\nx-slow: ", b"x")], ids=["body", "head"]
)
async def test_an_answer_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch, said: bytes, drip: bytes) -> None:
    for name in ("_CONNECT_S", "_POOL_S", "_WRITE_S"):
        monkeypatch.setattr(_http, name, 0.3)
    with raw(lambda number: answer(200, GOOD) if number else said, drip=drip, drip_s=0.05) as server:
        async with connected(server.url, read_timeout_s=0.5) as client:
            with pytest.raises(Lost, match="no answer within the time-out"):
                await client.generate("hs-0000000a-00000000-00", IDS)
            assert (await client.generate("hs-0000000a-00000001-00", IDS)).prompt_tokens == 5


async def test_cancelled_requests_cost_no_connection() -> None:
    """httpcore 1.0.9 loses a connection's slot when a request is cancelled at the wrong moment."""
    chance = random.Random(7)
    with raw(answer(200, GOOD), after_s=0.004) as server:
        tls = shared_tls()

        async def harass(client: ServerClient) -> None:
            for _ in range(12):
                with anyio.move_on_after(chance.random() * 0.012), contextlib.suppress(RequestError):
                    await client.generate("hs-0000000a-00000000-00", IDS)

        clients = [ServerClient(server.url, tls=tls, read_timeout_s=5) for _ in range(8)]
        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(harass, client)
        for client in clients:
            assert (await client.generate("hs-0000000a-00000000-00", IDS)).prompt_tokens == 5
            await client.close()


async def test_a_library_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HS_HTTP", "requests")
    with pytest.raises(UsageError, match="HS_HTTP=requests: give httpx or httpx2"):
        shared_tls()
