"""Every HTTP request of the client: one connection a worker; errors say whether the server may have begun work.

The library's shared pool costs three times the processor time of single-connection clients and is unfair under load, so
each worker has its own client; they share one TLS context, which is what is expensive to make. The keep-alive is below
the five seconds of SGLang's front end, so that no request meets a connection that the server just closes.
"""

from __future__ import annotations

import ssl
from typing import Any

import httpx
import msgspec
import numpy as np
import numpy.typing as npt

from hs_client.attempt import Answer

__all__ = ["Busy", "Lost", "Refused", "RequestError", "ServerClient", "Unreachable", "shared_tls"]

_KEEPALIVE_S = 4.0
_CONNECT_S = 5.0
_WRITE_S = 30.0


class RequestError(Exception):
    """A request without a usable answer; the text is for the user."""


class Refused(RequestError):
    """The server has read the request and will not do it (4xx): the same request would be refused again."""


class Busy(RequestError):
    """The server is there but does not take requests now (503, 429): nothing was or will be computed."""


class Unreachable(RequestError):
    """No connection came about: the request was not sent."""


class Lost(RequestError):
    """The request was sent, at least in part, and no proper answer came: its record may still appear."""


class _Finish(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    prompt_tokens: int = -1
    cached_tokens: int = -1


class _Generated(msgspec.Struct):
    meta_info: _Meta


_ANSWER = msgspec.json.Decoder(_Generated)

# No token is asked for: SGLang then runs the prefill alone, neither samples nor, under overlap scheduling, starts a
# decode step whose result nobody wants; 0.5.20 gives such a request the same context limit as one that asks for a
# token.
_SAMPLING = {"max_new_tokens": 0, "temperature": 0}


def shared_tls() -> ssl.SSLContext:
    """The TLS context for all clients of this process."""
    return httpx.create_ssl_context()


class ServerClient:
    """One connection to one server.

    Args:
        url: such as ``http://127.0.0.1:8000``.
        read_timeout_s: how long an answer may take.
    """

    def __init__(self, url: str, *, tls: ssl.SSLContext, read_timeout_s: float) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=tls,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S),
            timeout=httpx.Timeout(connect=_CONNECT_S, write=_WRITE_S, read=read_timeout_s, pool=None),
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()

    async def generate(self, rid: str, ids: npt.NDArray[np.int32]) -> Answer:
        """Have the server prefill `ids` (int32 [n]) under `rid`.

        Raises:
            Refused: do not try again.
            Busy: try later.
            Unreachable: try later.
            Lost: the record may still appear.
        """
        body = msgspec.json.encode({"rid": rid, "input_ids": ids.tolist(), "sampling_params": _SAMPLING})
        data = await self._send("POST", "/generate", body)
        try:
            meta = _ANSWER.decode(data).meta_info
        except msgspec.MsgspecError as error:
            raise Lost(f"the answer is not one of SGLang's: {error}") from None
        finish = meta.finish_reason or _Finish()
        return Answer(finish.type, finish.message, meta.prompt_tokens, meta.cached_tokens)

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
        except msgspec.MsgspecError as error:
            raise Lost(f"{path} is no JSON object: {error}") from None

    async def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {"content-type": "application/json"} if body is not None else None
        try:
            response = await self._client.request(method, path, content=body, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(_words(error)) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise Unreachable(f"not a usable URL: {error}") from None
        except httpx.ReadTimeout:
            raise Lost("no answer within the time-out") from None
        except httpx.HTTPError as error:
            raise Lost(_words(error)) from None
        if response.status_code == 200:
            return response.content
        words = f"HTTP {response.status_code}: {_server_words(response.content)}"
        if response.status_code in (429, 503):
            raise Busy(words)
        if response.status_code >= 500:
            raise Lost(words)
        raise Refused(words)


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _server_words(content: bytes) -> str:
    """The message in an error body, which is an object, a nested object or a string depending on who refused."""
    try:
        body = msgspec.json.decode(content)
    except msgspec.MsgspecError:
        body = content.decode("utf-8", "replace")
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and key in body:
            body = body[key]
    return " ".join(str(body).split())[:300] or "no words"
