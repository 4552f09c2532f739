"""A server that answers the doctor as SGLang does and writes its ranks' parts, sound or broken, in the test's process.

Its states are made of the token ids and their prefixes, as those of a causal model: a row depends on all tokens before
it. It is for tests of the examination itself; that a real capture is examined rightly is tested with a real SGLang.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.control import CaptureStatistics, ControlFolder, Marker, now_s
from hs_formats.failure_ring import FailureRing
from hs_formats.fixed_record import FixedRecord
from hs_formats.names import canary_of_every_rank
from hs_formats.tiling import Writers
from markers import make_marker
from parts import make_part, part_name

__all__ = ["BOUNDARIES", "HIDDEN", "NONCE", "CanaryServer", "Written", "canary_serving", "causal_states"]

NONCE = "00112233445566aa"
HIDDEN = 32
BOUNDARIES = (1, 3)


@dataclass
class Written:
    """A part that is about to be written; a test may change it, or drop it with `keep`."""

    rid: str
    rank: int
    start: int
    stop: int
    n: int
    ids: list[int]
    states: npt.NDArray[np.float32]
    together: bool
    nonce: str = NONCE
    boundaries: tuple[int, ...] = BOUNDARIES
    keep: bool = True


@dataclass
class CanaryServer:
    """`spoil(part)` is asked about every part, `refuse(rid)` gives a status code; both see what is sent."""

    scratch: Path
    ranks: int = 2
    writers: Writers = "first"
    chunk_size: int = 16
    context_length: int = 512
    proves_layers: bool = True
    info: dict[str, Any] = field(default_factory=dict)
    info_status: int = 200
    spoil: Callable[[Written], None] = lambda part: None
    refuse: Callable[[str], int] = lambda rid: 200
    cached: Callable[[str], int] = lambda rid: 0
    give_up: Callable[[str, int], str] = lambda rid, rank: ""
    authorization: str | None = None
    port: int = 0
    requests: list[tuple[str, list[int]]] = field(default_factory=list)
    graph_replays: int = 0
    _rows: dict[int, int] = field(default_factory=dict)
    _forwards: int = 0

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def marker(self, rank: int, **changes: Any) -> Marker:
        """The marker of a rank."""
        made = {
            "nonce": NONCE,
            "pid": os.getpid(),
            "rank": rank,
            "tp_size": self.ranks,
            "attn_tp_rank": rank,
            "attn_tp_size": self.ranks,
            "writers": self.writers,
            "expected_ranks": [0] if self.writers == "first" else list(range(self.ranks)),
            "port": self.port,
            "boundaries": list(BOUNDARIES),
            "dtype": "float32",
            "hidden_size": HIDDEN,
            "context_length": self.context_length,
            "chunk_size": self.chunk_size,
        }
        return make_marker(**(made | changes))

    def prefill(self, rids: Sequence[str], prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Write what the ranks write of a batch, and answer."""
        answers: list[dict[str, Any]] = []
        for rid, ids in zip(rids, prompts, strict=True):
            self.requests.append((rid, list(ids)))
            for rank in range(self.ranks):
                self._write(rid, list(ids), rank, together=len(rids) > 1)
            meta = {
                "prompt_tokens": len(ids),
                "cached_tokens": self.cached(rid),
                "finish_reason": {"type": "length", "length": 0},
            }
            answers.append({"meta_info": meta})
        self._forwards += 1
        self._publish()
        return answers

    def _write(self, rid: str, ids: list[int], rank: int, *, together: bool) -> None:
        every = canary_of_every_rank(rid) or self.writers == "all"
        if (reason := self.give_up(rid, rank)) and (every or rank == 0):
            self._rings[rank].record(rid, reason)
            return
        n = len(ids)
        states = causal_states(ids)
        step = self.chunk_size or n
        for start in range(0, n, step):
            a, b = start, min(n, start + step)
            if not every and self.writers == "spread":
                rows = b - a
                a, b = a + rows * rank // self.ranks, a + rows * (rank + 1) // self.ranks
            elif not every and rank:
                continue
            if a == b:
                continue
            part = Written(rid, rank, a, b, n, ids[a:b], states[a:b].copy(), together)
            self.spoil(part)
            if not part.keep:
                continue
            name = part_name(rid, part.start, part.stop, n, rank=rank)
            data = make_part(
                rid,
                part.start,
                part.stop,
                n,
                rank=rank,
                boundaries=part.boundaries,
                hidden=HIDDEN,
                writers="all" if every else self.writers,
                expected_ranks=range(self.ranks) if every else [0],
                states=part.states,
                ids=part.ids,
                nonce=part.nonce,
            )
            temporary = self.scratch / f".{name}.{NONCE}.tmp"
            temporary.write_bytes(data)
            temporary.rename(self.scratch / name)
            self._rows[rank] = self._rows.get(rank, 0) + part.stop - part.start

    def _publish(self) -> None:
        for rank, record in enumerate(self._records):
            statistics = CaptureStatistics(
                pid=os.getpid(),
                rank=rank,
                nonce=NONCE,
                at_s=now_s(),
                forwards=self._forwards,
                graph_replays=self.graph_replays if self._forwards else 0,
                rows=self._rows.get(rank, 0),
                files=0,
                bytes_written=0,
                failed=0,
                ring_bytes=0,
                ring_waits=0,
                ring_waited_s=0.0,
                canary_forwards=self._forwards,
                layers_proved=self._forwards if self.proves_layers else 0,
            )
            record.write({name: getattr(statistics, name) for name in CaptureStatistics.__slots__})

    def start(self) -> Callable[[], None]:
        """Listen, and leave the markers; returns what stops it."""
        control = ControlFolder(self.scratch)
        control.create()
        server = _Http(("127.0.0.1", 0), _handler(self))
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        pid = os.getpid()
        self._rings = [FailureRing(control.failure_path(pid, rank), slots=64) for rank in range(self.ranks)]
        self._records = [FixedRecord(control.statistics_path(pid, rank)) for rank in range(self.ranks)]
        self.held = [control.hold_marker(self.marker(rank)) for rank in range(self.ranks)]
        self._publish()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()
            for ring in self._rings:
                ring.close()
            for record in self._records:
                record.close()
            for held in self.held:
                held.release()

        return stop


@contextmanager
def canary_serving(scratch: Path, **options: Any) -> Iterator[CanaryServer]:
    """A server for the length of a block."""
    server = CanaryServer(scratch, **options)
    stop = server.start()
    try:
        yield server
    finally:
        stop()


def causal_states(ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """float32 [n, 3, HIDDEN]: each row is fixed by its token and all before it."""
    rows = [
        np.random.default_rng([*ids[: t + 1]]).standard_normal((len(BOUNDARIES) + 1, HIDDEN)) for t in range(len(ids))
    ]
    return np.asarray(rows, dtype=np.float32)


class _Http(ThreadingHTTPServer):
    daemon_threads = False  # closing it waits for requests under way


def _handler(owner: CanaryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"disable_radix_cache": True, "version": "0.5.20", **owner.info}
            self._answer(owner.info_status if self.path == "/server_info" else 404, found)

        def do_POST(self) -> None:
            owner.authorization = self.headers.get("authorization")
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            status = max(owner.refuse(rid) for rid in body["rid"])
            if status != 200:
                self._answer(status, {"error": {"message": "not today"}})
                return
            self._answer(200, owner.prefill(body["rid"], body["input_ids"]))

        def _answer(self, status: int, body: Any) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    return Handler
