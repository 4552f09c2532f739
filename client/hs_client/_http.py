"""Every HTTP request of the client: one connection a worker; errors say whether the server may have begun work.

The library's shared pool costs several times the processor time of single-connection clients and is unfair under load,
so each worker has its own; they share one TLS context, which is what is expensive to make. Requests go straight to the
transport: redirects, cookies and authentication flows are nothing that SGLang has. The keep-alive is below the five
seconds of SGLang's front end, so that no request meets a connection that the server just closes.

`HS_HTTP=httpx2` takes the successor of httpx, which has the same interface (extra ``httpx2``).
"""

from __future__ import annotations

import functools
import importlib
import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio
import msgspec
import numpy as np
import numpy.typing as npt

from hs_client.attempt import Answer
from hs_formats.errors import UsageError
from hs_formats.jsonl import UNREADABLE

if TYPE_CHECKING:
    import httpx

__all__ = [
    "API_KEY_VARIABLE",
    "Busy",
    "Denied",
    "Generated",
    "Lost",
    "Refused",
    "RequestError",
    "ServerClient",
    "Unreachable",
    "api_key",
    "http_library",
    "shared_tls",
]

API_KEY_VARIABLE = "HS_API_KEY"
LIBRARIES = ("httpx", "httpx2")

_KEEPALIVE_S = 4.0
_CONNECT_S = 5.0
_WRITE_S = 30.0
_POOL_S = 5.0
_CLOSE_S = 2.0
_MAX_ANSWER_BYTES = 64 << 20
"""SGLang's longest answers, a million token ids, have a fifth of it."""
_MAX_WORDS = 300


class RequestError(Exception):
    """A request without a usable answer; the text is for the user."""


class Refused(RequestError):
    """The server has read the request and will not do it (4xx): the same request would be refused again."""


class Denied(RequestError):
    """The server wants another API key (401, 403), whatever the request."""


class Busy(RequestError):
    """The server is there but does not take requests now (503, 429, 408): nothing was or will be computed."""


class Unreachable(RequestError):
    """No connection came about: the request was not sent."""


class Lost(RequestError):
    """The request was sent, at least in part, and no proper answer came: its record may still appear."""


class Generated(msgspec.Struct, frozen=True):
    """What the server has generated. `output_ids` are all tokens of the answer, the one that ended it included.

    `finish_type` is SGLang's: ``stop``, ``length`` or ``abort``. `matched`: the token or text that ended it. `counted`:
    how many tokens it has by the server's own count.
    """

    output_ids: list[int]
    finish_type: str
    finish_reason: str
    matched: int | str | None
    prompt_tokens: int
    counted: int


class _Finish(msgspec.Struct):
    type: str = ""
    message: str = ""
    matched: int | str | list[int] | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int = -1
    cached_tokens: int = -1
    completion_tokens: int = -1


class _Said(msgspec.Struct):
    meta_info: _Meta
    output_ids: list[int] | None = None


_ANSWER = msgspec.json.Decoder(_Said)

# No token is asked for: SGLang then runs the prefill alone, neither samples nor, under overlap scheduling, starts a
# decode step whose result nobody wants; 0.5.20 gives such a request the same context limit as one that asks for a
# token.
_SAMPLING = {"max_new_tokens": 0, "temperature": 0}


def http_library() -> Any:
    """The module that speaks HTTP: httpx, or what ``HS_HTTP`` names.

    Raises:
        UsageError: it names something else, or what is not installed.
    """
    name = os.environ.get("HS_HTTP") or LIBRARIES[0]
    if name not in LIBRARIES:
        raise UsageError(f"HS_HTTP={name}: give httpx or httpx2")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise UsageError(f"HS_HTTP={name}: it is not installed; pip install 'hs-extract[{name}]'") from None


def api_key() -> str:
    """The key that the server was started with (``--api-key``), from the environment; empty where there is none."""
    return os.environ.get(API_KEY_VARIABLE, "")


def shared_tls() -> ssl.SSLContext:
    """The TLS context for all clients of this process. The first call loads the library: not inside the event loop.

    Raises:
        UsageError: as `http_library`.
    """
    return _context(http_library())


@functools.cache
def _context(library: Any) -> ssl.SSLContext:
    context: ssl.SSLContext = library.create_ssl_context()
    return context


class ServerClient:
    """One connection to one server, for one task at a time.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        tls: see `shared_tls`.
        read_timeout_s: how long an answer may take.
        key: the server's API key; empty where it has none.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext, read_timeout_s: float, key: str = "") -> None:
        self._library = http_library()
        self._tls = tls
        self._url = url.rstrip("/")
        self._headers = {"host": urlsplit(url).netloc.rpartition("@")[2], "accept": "*/*"}
        if key:
            self._headers["authorization"] = f"Bearer {key}"
        self._patience_s = _CONNECT_S + _POOL_S + _WRITE_S + read_timeout_s
        timeout = {"connect": _CONNECT_S, "write": _WRITE_S, "read": read_timeout_s, "pool": _POOL_S}
        self._extensions = {"timeout": timeout}
        self._transport: httpx.AsyncHTTPTransport = self._connect()

    def _connect(self) -> httpx.AsyncHTTPTransport:
        library = self._library
        transport: httpx.AsyncHTTPTransport = library.AsyncHTTPTransport(
            verify=self._tls,
            trust_env=False,
            limits=library.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S),
        )
        return transport

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.aclose()

    async def _start_anew(self) -> None:
        """A request that was cut short may have left the transport's only slot taken: it is not used again."""
        old, self._transport = self._transport, self._connect()
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await old.aclose()

    async def generate(self, rid: str, ids: npt.NDArray[np.int32]) -> Answer:
        """Have the server prefill `ids` (int32 [n]) under `rid`.

        Raises:
            Refused: do not try again.
            Denied: no request will be taken with this key.
            Busy: try later.
            Unreachable: try later.
            Lost: the record may still appear.
        """
        meta = (await self._generate(rid, ids, _SAMPLING)).meta_info
        finish = meta.finish_reason or _Finish()
        return Answer(finish.type, finish.message, meta.prompt_tokens, meta.cached_tokens)

    async def answer(self, rid: str, ids: npt.NDArray[np.int32], sampling: Mapping[str, Any]) -> Generated:
        """Have the server go on from `ids` (int32 [n]) under `rid`, with SGLang's `sampling` parameters.

        Raises:
            RequestError: as `generate`.
        """
        said = await self._generate(rid, ids, sampling)
        finish = said.meta_info.finish_reason or _Finish()
        meta = said.meta_info
        matched = finish.matched if not isinstance(finish.matched, list) else None
        return Generated(
            said.output_ids or [], finish.type, finish.message, matched, meta.prompt_tokens, meta.completion_tokens
        )

    async def _generate(self, rid: str, ids: npt.NDArray[np.int32], sampling: Mapping[str, Any]) -> _Said:
        body = msgspec.json.encode({"rid": rid, "input_ids": ids.tolist(), "sampling_params": sampling})
        data = await self._send("POST", "/generate", body)
        try:
            return _ANSWER.decode(data)
        except UNREADABLE as error:
            raise Lost(f"the answer is not one of SGLang's: {_not_json(data) or error}") from None

    async def model_info(self) -> dict[str, Any]:
        """The server's ``/model_info``; cheap, runs nothing on the model.

        Raises:
            RequestError: as `generate`.
        """
        return await self._get("/model_info")

    async def server_info(self) -> dict[str, Any]:
        """The server's ``/server_info``: its settings and what it worked out from them.

        Raises:
            RequestError: as `generate`.
        """
        return await self._get("/server_info")

    async def _get(self, path: str) -> dict[str, Any]:
        data = await self._send("GET", path, None)
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except UNREADABLE as error:
            raise Lost(f"{path} is no JSON object: {_not_json(data) or error}") from None

    async def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        library = self._library
        headers = self._headers if body is None else {**self._headers, "content-type": "application/json"}
        try:
            request = library.Request(
                method, self._url + path, headers=headers, content=body, extensions=self._extensions
            )
            # The library's time-outs are those of single reads, which a server that drips meets for ever.
            with anyio.fail_after(self._patience_s):
                response = await self._transport.handle_async_request(request)
                try:
                    content = await _body(response)
                finally:
                    await response.aclose()
        except (library.ConnectError, library.ConnectTimeout, library.PoolTimeout) as error:
            await self._start_anew()
            raise Unreachable(_words(error)) from None
        except (library.InvalidURL, library.UnsupportedProtocol) as error:
            raise Unreachable(f"not a usable URL: {error}") from None
        except (library.ReadTimeout, TimeoutError):
            await self._start_anew()
            raise Lost("no answer within the time-out") from None
        except library.HTTPError as error:
            await self._start_anew()
            raise Lost(_words(error)) from None
        except AttributeError:
            # anyio asks for the peer of a connection that is gone already, and uvloop then has no socket to ask.
            await self._start_anew()
            raise Lost("the connection broke as soon as it was there") from None
        except BaseException:
            await self._start_anew()
            raise
        return _content(response.status_code, content)


async def _body(response: httpx.Response) -> bytes:
    """All of an answer that is not too long to be one."""
    pieces: list[bytes] = []
    size = 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_ANSWER_BYTES:
            raise Lost(f"the answer is longer than {_MAX_ANSWER_BYTES:,} bytes, so this is no SGLang server")
    return b"".join(pieces)


def _content(status: int, content: bytes) -> bytes:
    """The content of an answer that is one.

    SGLang refuses with 400, in an object, a nested object or a string; a full queue and what waited too long in it are
    503, and so is a server that drains. What a 5xx of another kind has left behind nobody knows.
    """
    if status == 200:
        return content
    words = f"HTTP {status}: {_server_words(content)}"
    if status in (401, 403):
        raise Denied(words)
    if status in (408, 429, 503):
        raise Busy(words)
    if status < 400 or status >= 500:
        raise Lost(words)
    raise Refused(words)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _server_words(content: bytes) -> str:
    """The message in an error body, which is an object, a nested object or a string depending on who refused."""
    try:
        body = msgspec.json.decode(content)
    except UNREADABLE:
        body = _not_json(content)
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return " ".join(str(body).split())[:_MAX_WORDS] or "no words"


def _not_json(content: bytes) -> str:
    """What was answered instead of JSON: a web page is named, not quoted."""
    text = content[: 4 * _MAX_WORDS].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if text.startswith("<"):
        return "a web page, so this is no SGLang server"
    return " ".join(text.split())[:_MAX_WORDS] if content[:1] not in (b"{", b"[") else ""
