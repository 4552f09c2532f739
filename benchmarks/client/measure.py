"""One arm in a process of its own: ``python -m benchmarks.client.measure ARM URL CONCURRENCY SECONDS LOOP``.

Prints JSON: requests, seconds, processor seconds of this process, quantiles of the latencies in seconds.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from itertools import count
from typing import Any

import anyio
import numpy as np

from benchmarks.client.senders import SENDERS, Send

__all__ = ["IDS", "main"]

IDS = 2000
_WARM_UP_S = 1.0
_KEPT_LATENCIES = 100_000
_QUANTILES = 1000


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _measure(name: str, url: str, concurrency: int, seconds: float) -> dict[str, Any]:
    ids = np.random.default_rng(5).integers(1000, 150_000, IDS).astype(np.int32)
    as_list = ids.tolist()
    numbers = count()
    latencies: list[float] = []
    requests = wrong = 0
    end_s = float("inf")

    async def work(send: Send) -> None:
        nonlocal requests, wrong
        while (started_s := time.perf_counter()) < end_s:
            tokens = await send(f"hs-00000001-{next(numbers):08d}-00", ids, as_list)
            requests += 1
            wrong += tokens != IDS
            if len(latencies) < _KEPT_LATENCIES:
                latencies.append(time.perf_counter() - started_s)

    found: dict[str, Any] = {}
    async with SENDERS[name](url, concurrency) as senders, anyio.create_task_group() as group:
        for send in senders:
            group.start_soon(work, send)
        await anyio.sleep(_WARM_UP_S)
        latencies.clear()
        first, cpu_s, begin_s = requests, _cpu_s(), time.perf_counter()
        await anyio.sleep(seconds)
        found |= {
            "requests": requests - first,
            "wrong": wrong,
            "seconds": time.perf_counter() - begin_s,
            "cpu_s": _cpu_s() - cpu_s,
        }
        found["latencies_s"] = _quantiles(latencies)
        end_s = 0.0
    return found


def _quantiles(values: list[float]) -> list[float]:
    """At most `_QUANTILES` of them, evenly spread over the sorted ones: every sample then weighs the same."""
    ordered = sorted(values)
    step = max(1, len(ordered) // _QUANTILES)
    return [round(value, 6) for value in ordered[step // 2 :: step]]


def main() -> None:
    """Run one arm."""
    name, url, concurrency, seconds, loop = sys.argv[1:]
    if name.startswith("ours"):
        from hs_client._http import shared_tls

        shared_tls()
    found = anyio.run(
        _measure, name, url, int(concurrency), float(seconds), backend_options={"use_uvloop": loop == "uvloop"}
    )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
