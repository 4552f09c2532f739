"""The load: requests with exact token ids at a fixed concurrency, and proof that the generator is not the limit.

One task a connection, one single-connection client a task, bodies encoded before the clock starts. Every response is
checked: status, length, no cached token, not aborted.
"""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Load", "Prompt", "Vocabulary", "drive", "foreign_rids", "our_rids"]

_SPECIAL_BELOW = 100
_SPECIAL_ABOVE = 256
_CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Where random token ids come from: `size` as in the model's config, special ids at both ends left out."""

    size: int

    def draw(self, tokens: int, generator: np.random.Generator) -> list[int]:
        """`tokens` random ids."""
        margin = _SPECIAL_ABOVE if self.size > 4 * _SPECIAL_ABOVE else 8
        low = _SPECIAL_BELOW if self.size > 4 * _SPECIAL_ABOVE else 8
        return [int(token) for token in generator.integers(low, self.size - margin, size=tokens)]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request; `more` is put into its body."""

    rid: str
    input_ids: list[int]
    new_tokens: int = 1
    more: Mapping[str, Any] = field(default_factory=dict)

    def body(self) -> bytes:
        """The JSON of POST /generate."""
        sampling = {"max_new_tokens": self.new_tokens, "temperature": 0, "ignore_eos": True}
        body = {"rid": self.rid, "input_ids": self.input_ids, "sampling_params": sampling, **self.more}
        return json.dumps(body).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of driving some prompts. `generator_cpu` is the share of one core that the generator used."""

    requests: int
    tokens: int
    seconds: float
    latencies_s: list[float]
    failures: list[str]
    generator_cpu: float

    @property
    def tokens_per_s(self) -> float:
        """Prompt tokens per second."""
        return self.tokens / self.seconds


def our_rids(run: str, first: int, count: int) -> list[str]:
    """Request ids that the capture writes: rows `first` and on of `run`."""
    return [f"hs-{run}-{row:08d}-00" for row in range(first, first + count)]


def foreign_rids(count: int) -> list[str]:
    """Request ids that the capture must leave alone."""
    return [uuid.uuid4().hex for _ in range(count)]


Take = Callable[[Prompt, bytes], str | None]
"""What is done with a good answer while the clock runs; returns what is wrong with it, if anything."""


def drive(
    url: str, prompts: Sequence[Prompt], *, concurrency: int, timeout_s: float = 600.0, take: Take | None = None
) -> Load:
    """Send all `prompts`, `concurrency` at a time, and wait for all answers, each of which is given to `take`."""
    return asyncio.run(_drive(url, prompts, concurrency=concurrency, timeout_s=timeout_s, take=take))


async def _drive(url: str, prompts: Sequence[Prompt], *, concurrency: int, timeout_s: float, take: Take | None) -> Load:
    import httpx

    work = iter([(prompt, prompt.body()) for prompt in prompts])
    context = ssl.create_default_context()
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
    timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
    clients = [
        httpx.AsyncClient(verify=context, limits=limits, timeout=timeout, trust_env=False)
        for _ in range(min(concurrency, len(prompts)))
    ]
    latencies_s: list[float] = []
    failures: list[str] = []

    async def worker(client: httpx.AsyncClient, work: Iterator[tuple[Prompt, bytes]]) -> None:
        for prompt, body in work:
            began = time.perf_counter()
            try:
                response = await client.post(
                    f"{url}/generate", content=body, headers={"content-type": "application/json"}
                )
                problem = _problem(prompt, response.status_code, response.content)
                if take is not None and not problem:
                    problem = take(prompt, response.content)
            except httpx.HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            latencies_s.append(time.perf_counter() - began)
            if problem:
                failures.append(f"{prompt.rid}: {problem}")

    gc.collect()
    gc.disable()
    cpu_s, started = time.process_time(), time.perf_counter()
    try:
        await asyncio.gather(*(worker(client, work) for client in clients))
        seconds = time.perf_counter() - started
        cpu_s = time.process_time() - cpu_s
    finally:
        gc.enable()
        for client in clients:
            await client.aclose()
    return Load(
        requests=len(prompts),
        tokens=sum(len(prompt.input_ids) for prompt in prompts),
        seconds=seconds,
        latencies_s=sorted(latencies_s),
        failures=failures,
        generator_cpu=cpu_s / seconds,
    )


def _problem(prompt: Prompt, status: int, content: bytes) -> str | None:
    if status != 200:
        return f"status {status}: {content[:200].decode(errors='replace')}"
    try:
        meta: dict[str, Any] = json.loads(content)["meta_info"]
    except (ValueError, KeyError, TypeError):
        return f"no meta_info in {content[:200].decode(errors='replace')}"
    if meta.get("prompt_tokens") != len(prompt.input_ids):
        return f"{meta.get('prompt_tokens')} prompt tokens instead of {len(prompt.input_ids)}"
    if meta.get("cached_tokens"):
        return f"{meta['cached_tokens']} tokens came from a cache"
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        return f"aborted: {reason.get('message')}"
    return None
