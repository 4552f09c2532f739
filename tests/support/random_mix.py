"""A random mix of requests on a real server, and every complete record compared with transformers.

Requests of random lengths go out from many threads in random order, some are aborted under way, some are refused by the
scheduler; what lies in scratch afterwards is compared part by part, without client and mover. All that is drawn comes
from a seed.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import urllib.request
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from chain import Server, wait_until
from checker import Reference
from hs_formats.names import PartName, Rid
from hs_formats.tiling import cover
from routing import routing_margins

__all__ = ["LONG_TOKENS", "Parts", "run_mix", "send_one_by_one"]

RUN = "0e2e0de1"
TOLERANCE = 1e-5
LEAST_MARGIN = 1e-6
REQUESTS, LONGEST, AT_ONCE = 60, 100, 12
LONG_TOKENS = 1500

Parts = dict[str, list[tuple[PartName, Any]]]


@dataclass
class Request:
    """One request and what became of it."""

    rid: str
    ids: list[int]
    sampling: dict[str, Any]
    abort: bool = False
    mid_prefill: bool = False
    status: int = 0
    finish: str = ""

    @property
    def served(self) -> bool:
        """Answered, and not aborted."""
        return self.status == 200 and self.finish != "abort"


def run_mix(
    server: Server, reference: Reference, *, chunk_tokens: int, seed: int, long_tokens: int = LONG_TOKENS
) -> str:
    """Send a mix, compare all that lies in scratch, remove it; returns what was found, in words.

    Args:
        server: with nothing in scratch.
        reference: of its model and boundaries.
        chunk_tokens: the server's chunk size.
        seed: of lengths, ids, order and pauses.
        long_tokens: length of the prompts that are to be aborted; many chunks.

    Raises:
        AssertionError: a record is missing, too much, not whole or not equal; a tie in the routing is no excuse for
            rows before it.
    """
    assert server.parts() == []
    requests = _mix(chunk_tokens, seed, long_tokens)
    try:
        _send(server, requests, seed)
        said = _compare(requests, _records(server.scratch), reference, chunk_tokens=chunk_tokens)
    finally:
        for name in server.parts():
            (server.scratch / name).unlink()
    assert server.healthy()
    return f"{server.model.name}, chunks of {chunk_tokens}: {said}"


def send_one_by_one(server: Server, lengths: list[int], *, seed: int) -> dict[str, tuple[list[int], bytes]]:
    """Part name → (token ids, bytes of the states) of random prompts of `lengths`, each sent when the last is stored.

    So every forward pass has rows of one prompt only, and two servers of the same settings compute the same bits.
    """
    draw = random.Random(seed)
    found: dict[str, tuple[list[int], bytes]] = {}
    for row, n in enumerate(lengths):
        ids = [draw.randrange(3, 500) for _ in range(n)]
        status, _ = server.generate(_rid(row), ids)
        assert status == 200

        def whole(row: int = row, n: int = n) -> bool:
            parts = [PartName.parse(name) for name in server.parts() if name.startswith(_rid(row))]
            return cover(n, [(part.start, part.stop) for part in parts]).exact

        wait_until(whole, timeout_s=30, what=f"the record of {n} tokens")
        for name in server.parts():
            content = torch.load(server.scratch / name, weights_only=True)
            states = content["hidden_states"].contiguous().view(-1).view(torch.uint8)
            found[name] = (content["input_ids"].tolist(), states.numpy().tobytes())
            (server.scratch / name).unlink()
    return found


def _mix(chunk_tokens: int, seed: int, long_tokens: int) -> list[Request]:
    draw = random.Random(seed)
    prefix = [draw.randrange(3, 500) for _ in range(LONGEST)]
    lengths = [1, 2, chunk_tokens - 1, chunk_tokens, chunk_tokens + 1, 3 * chunk_tokens, LONGEST]
    requests: list[Request] = []
    for row in range(REQUESTS):
        n = lengths[row] if row < len(lengths) else draw.randrange(1, LONGEST + 1)
        ids = [draw.randrange(3, 500) for _ in range(n)]
        if row % 3 == 0:
            ids = (prefix[: n // 2] + ids)[:n]
        sampling: dict[str, Any] = {"max_new_tokens": draw.choice([0, 1, 1, 3])}
        if row % 20 == 19:
            # Found out in the scheduler only, which then runs one dummy token under the request's id.
            sampling = {"max_new_tokens": 1, "regex": "(unclosed"}
        requests.append(Request(_rid(row), ids, sampling))
    for row in range(REQUESTS, REQUESTS + 6):
        ids = [draw.randrange(3, 500) for _ in range(long_tokens)]
        requests.append(Request(_rid(row), ids, {"max_new_tokens": 1}, abort=True, mid_prefill=row % 2 == 0))
    draw.shuffle(requests)
    return requests


def _rid(row: int) -> str:
    return str(Rid(run=RUN, row=row, attempt=0))


def _send(server: Server, requests: list[Request], seed: int) -> None:
    draw = random.Random(seed + 1)
    pauses = [draw.uniform(0.05, 0.4) for _ in requests]

    def one(request: Request, pause_s: float) -> None:
        if request.abort:
            threading.Thread(target=_abort, args=(server, request, pause_s), daemon=True).start()
        request.status, answer = server.generate(request.rid, request.ids, **request.sampling)
        meta = answer.get("meta_info", {}) if request.status == 200 else {}
        request.finish = (meta.get("finish_reason") or {}).get("type", "")

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, requests, pauses))
    seen: list[list[str]] = [[]]

    def settled() -> bool:
        seen.append(server.parts())
        return seen[-1] == seen[-2] and not any(".tmp" in name for name in seen[-1])

    wait_until(settled, timeout_s=20, every_s=1.0, what="an end of new parts")


def _abort(server: Server, unwanted: Request, pause_s: float) -> None:
    """Abort after a while, when it may still be in the queue; or as soon as its first chunk has been captured."""
    rid = unwanted.rid
    if unwanted.mid_prefill:
        ends_at = time.monotonic() + 30
        while not any(name.startswith(rid) for name in server.parts()) and time.monotonic() < ends_at:
            time.sleep(0.005)
    else:
        time.sleep(pause_s)
    body = json.dumps({"rid": rid}).encode()
    request = urllib.request.Request(server.url + "/abort_request", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30):
        pass


def _records(scratch: Path) -> Parts:
    records: Parts = defaultdict(list)
    for path in sorted(scratch.glob("hs-*.pt")):
        name = PartName.parse(path.name)
        records[str(name.rid)].append((name, torch.load(path, weights_only=True)))
    assert not list(scratch.glob(".hs-*"))
    strays = [path.name for path in scratch.iterdir() if not re.match(r"hs-|\.hs$", path.name)]
    assert strays == []
    return dict(records)


def _compare(requests: list[Request], records: Parts, reference: Reference, *, chunk_tokens: int) -> str:
    by_rid = {request.rid: request for request in requests}
    assert set(records) <= set(by_rid)
    assert {request.rid for request in requests if request.served} <= set(records)
    aborted = [request for request in requests if request.abort and not request.served]
    assert aborted, "no request was aborted in time"
    refused = [request for request in requests if "regex" in request.sampling]
    assert refused
    assert not any(request.served or request.rid in records for request in refused)

    worst, excused = 0.0, 0
    for rid, parts in records.items():
        request = by_rid[rid]
        n = len(request.ids)
        coverage = cover(n, [(part.start, part.stop) for part, _ in parts])
        assert not coverage.overlaps, rid
        assert coverage.exact or not request.served, rid
        assert {part.n for part, _ in parts} == {n}
        right = reference.states(request.ids)
        for part, content in parts:
            assert content["input_ids"].tolist() == request.ids[part.start : part.stop]
            states = content["hidden_states"]
            assert states.shape == (part.stop - part.start, len(reference.boundaries) + 1, right.shape[-1])
            rows = (states - right[part.start : part.stop]).abs().amax(dim=(1, 2))
            close = rows <= TOLERANCE  # not so for NaN
            if not close.all():
                # From a token with a tie on, attention carries the difference to the later ones.
                ties = (routing_margins(reference._inner, request.ids) < LEAST_MARGIN).cumsum(0)
                wrong = ~close & (ties[part.start : part.stop] == 0)
                assert not wrong.any(), f"{rid}, rows {part.start}-{part.stop}: {float(rows.max()):.2e} off"
                excused += 1
            else:
                worst = max(worst, float(rows.max()))
    whole = sum(request.served for request in requests)
    cut = sum(request.rid in records for request in aborted)
    assert cut, "no request was aborted in the middle of its prefill"
    assert excused <= 2
    # The mix was one: prompts in several chunks, chunks that several prompts shared.
    names = [part for parts in records.values() for part, _ in parts]
    assert any(part.start for part in names)
    assert any(part.start % chunk_tokens for part in names)
    _negative_control(records, by_rid, reference)
    return (
        f"{whole} records within {worst:.1e}, {excused} parts excused, {len(aborted)} aborted, {cut} of them with "
        f"parts, {len(refused)} refused"
    )


def _negative_control(records: Parts, by_rid: dict[str, Request], reference: Reference) -> None:
    """Rows of a neighbour, or of the neighbouring boundary, are far outside of the tolerance."""
    rid = max((rid for rid in records if by_rid[rid].served), key=lambda rid: len(by_rid[rid].ids))
    right = reference.states(by_rid[rid].ids)
    beside = [
        boundary + 1 if boundary < max(reference.boundaries) else boundary - 1 for boundary in reference.boundaries
    ]
    next_layers = Reference.__new__(Reference)
    next_layers.__dict__.update(reference.__dict__, boundaries=beside)
    others = next_layers.states(by_rid[rid].ids)
    for part, content in records[rid]:
        states = content["hidden_states"]
        assert float((states - right.roll(1, dims=0)[part.start : part.stop]).abs().amax(dim=2).min()) > 100 * TOLERANCE
        off = (states - others[part.start : part.stop]).abs().amax(dim=2)[:, : len(beside)]
        assert float(off.min()) > 100 * TOLERANCE
