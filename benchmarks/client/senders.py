"""Ways to send the same request: ours, and what one would write otherwise."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SENDERS", "Send"]

Send = Callable[[str, npt.NDArray[np.int32], list[int]], Awaitable[int]]
"""rid, ids as an array, the same as a list → prompt tokens that the answer counts."""

_SAMPLING = {"max_new_tokens": 0, "temperature": 0}
_READ_S = 600.0


def _body(rid: str, ids: list[int]) -> dict[str, Any]:
    return {"rid": rid, "input_ids": ids, "sampling_params": _SAMPLING}


@contextlib.asynccontextmanager
async def _ours(url: str, concurrency: int) -> AsyncIterator[list[Send]]:
    from hs_client._http import ServerClient, shared_tls

    tls = shared_tls()
    clients = [ServerClient(url, tls=tls, read_timeout_s=_READ_S) for _ in range(concurrency)]

    def sender(client: ServerClient) -> Send:
        async def send(rid: str, ids: npt.NDArray[np.int32], _: list[int]) -> int:
            return (await client.generate(rid, ids)).prompt_tokens

        return send

    try:
        yield [sender(client) for client in clients]
    finally:
        for client in clients:
            await client.close()


@contextlib.asynccontextmanager
async def _openai(url: str, concurrency: int) -> AsyncIterator[list[Send]]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key="none", timeout=_READ_S, max_retries=0) as client:

        async def send(rid: str, _: npt.NDArray[np.int32], ids: list[int]) -> int:
            answer: Any = await client.post("/generate", body=_body(rid, ids), cast_to=object)
            return int(answer["meta_info"]["prompt_tokens"])

        yield [send] * concurrency


@contextlib.asynccontextmanager
async def _pool(url: str, concurrency: int, *, tuned: bool) -> AsyncIterator[list[Send]]:
    import httpx
    import msgspec

    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    tuning: dict[str, Any] = {"limits": limits} if tuned else {}
    async with httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(_READ_S), **tuning) as client:

        async def plain(rid: str, _: npt.NDArray[np.int32], ids: list[int]) -> int:
            response = await client.post("/generate", json=_body(rid, ids))
            return int(response.json()["meta_info"]["prompt_tokens"])

        async def bytes_(rid: str, _: npt.NDArray[np.int32], ids: list[int]) -> int:
            content = msgspec.json.encode(_body(rid, ids))
            response = await client.post("/generate", content=content, headers={"content-type": "application/json"})
            return int(msgspec.json.decode(response.content)["meta_info"]["prompt_tokens"])

        yield [bytes_ if tuned else plain] * concurrency


@contextlib.asynccontextmanager
async def _aiohttp(url: str, concurrency: int) -> AsyncIterator[list[Send]]:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=concurrency)
    timeout = aiohttp.ClientTimeout(total=_READ_S)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as session:

        async def send(rid: str, _: npt.NDArray[np.int32], ids: list[int]) -> int:
            async with session.post("/generate", json=_body(rid, ids)) as response:
                answer = await response.json()
            return int(answer["meta_info"]["prompt_tokens"])

        yield [send] * concurrency


SENDERS: dict[str, Callable[[str, int], contextlib.AbstractAsyncContextManager[list[Send]]]] = {
    "ours": _ours,
    "ours-httpx2": _ours,
    "openai": _openai,
    "httpx-pool": lambda url, concurrency: _pool(url, concurrency, tuned=False),
    "httpx-pool-tuned": lambda url, concurrency: _pool(url, concurrency, tuned=True),
    "aiohttp": _aiohttp,
}
"""By name. The ids come as what each takes without converting them; ours has them as an array."""
