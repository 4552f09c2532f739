"""A server that behaves like SGLang with the capture armed, as far as a client can tell, and misbehaves as it is told.

It runs in threads of the test process, answers ``/generate`` (requests that are captured, and those that ask for an
answer), ``/model_info`` and ``/health``, writes real part files (chunk by chunk, by rename) and holds a real start-up
marker. Its states are a function of the token ids, so that a test can tell whether a record belongs to its prompt.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hs_formats.control import ControlFolder, HeldMarker, Marker
from hs_formats.doctor_pass import DoctorPass, write_pass
from hs_formats.failure_ring import FailureRing
from markers import make_marker
from parts import drop_part

__all__ = ["Act", "FakeServer", "Said", "fake_answer", "fake_states", "serving"]

NONCE = "feedfacefeedface"


@dataclass(frozen=True)
class Act:
    """What the server does with one request. All delays are seconds; rows are of the prompt's tokens.

    Attributes:
        status: of the answer; not 200 means that nothing is captured.
        body: of an answer that is not 200.
        delay_s: before the answer.
        raw: the body is text, not JSON.
        chunk_delay_s: before each further part.
        part_delay_s: between the answer (or the request, see `parts_first`) and the parts.
        parts_first: the parts are written before the answer.
        rows_from: rows before this one are not captured.
        parts: False captures nothing.
        vanish: close the connection instead of answering.
        failure: text for the failure ring instead of parts.
        ids: ids that the parts hold, when not those of the prompt.
        abandon: a request whose client has gone by the end of the delay is not captured, as SGLang's are not that have
            not been started.
    """

    status: int = 200
    body: Any = None
    raw: bool = False
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    part_delay_s: float = 0.0
    parts_first: bool = True
    rows_from: int = 0
    parts: bool = True
    vanish: bool = False
    failure: str = ""
    ids: Sequence[int] | None = None
    abandon: bool = False
    cached_tokens: int = 0
    prompt_tokens: int | None = None
    finish_type: str = "length"


@dataclass(frozen=True)
class Said:
    """What the server answers to a request for an answer.

    Attributes:
        ids: of the answer.
        finish: ``stop``, ``length`` or ``abort``.
        matched: the token or text that ended it; None: the last token.
        status: of the answer; not 200 sends `body`.
        delay_s: before the answer.
        vanish: close the connection instead of answering.
        count: of tokens, where it is not that of `ids`.
        prompt_tokens: where they are not those of the prompt.
    """

    ids: Sequence[int] = ()
    finish: str = "stop"
    matched: int | str | None = None
    status: int = 200
    body: Any = None
    delay_s: float = 0.0
    vanish: bool = False
    count: int | None = None
    prompt_tokens: int | None = None


def fake_answer(ids: Sequence[int], sampling: dict[str, Any], *, end: int = 2) -> Said:
    """Three to six tokens that depend on the prompt and the seed, and `end`; cut where less is asked for."""
    draw = np.random.default_rng([*ids, int(sampling["temperature"] > 0) * sampling["sampling_seed"]])
    found = [*draw.integers(10, 500, int(draw.integers(3, 7))).tolist(), end]
    most = sampling["max_new_tokens"]
    return Said(found, matched=end) if len(found) <= most else Said(found[:most], finish="length")


def fake_states(ids: Sequence[int], start: int, stop: int, *, slots: int, hidden: int) -> npt.NDArray[Any]:
    """The states of rows [start, stop): float32 [m, slots, hidden], fixed by the token and its place."""
    rows = [np.random.default_rng([ids[t], t]).standard_normal((slots, hidden)) for t in range(start, stop)]
    return np.asarray(rows, dtype="<f4")


@dataclass
class FakeServer:
    """A running fake. `act(number, rid, ids)` decides about each request, counted from 0."""

    scratch: Path
    port: int = 0
    boundaries: Sequence[int] = (1, 2)
    hidden: int = 8
    chunk_size: int = 16
    context_length: int = 2048
    longest_prompt: int = 0
    config_hash: str = "c0ffee"
    tokenizer: str = "/nonexistent/tokenizer"
    model: str = "fake-model"
    capture: bool = True
    passed: bool = True
    act: Callable[[int, str, list[int]], Act] = lambda number, rid, ids: Act()
    say: Callable[[int, list[int], dict[str, Any]], Said] = lambda number, ids, sampling: fake_answer(ids, sampling)
    info: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, list[int]]] = field(default_factory=list)
    asked: list[tuple[str, list[int], dict[str, Any]]] = field(default_factory=list)
    no_space: int = 0
    abandoned: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: list[Callable[[], None]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def rids(self) -> list[str]:
        """Request ids in the order in which they came."""
        return [rid for rid, _ in self.requests]

    def start(self) -> None:
        """Listen, and arm the capture."""
        control = ControlFolder(self.scratch)
        control.create()
        server = _Http(("127.0.0.1", self.port), _handler(self))
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        ring = FailureRing(control.failure_path(os.getpid(), 0), slots=64)
        self._ring = ring
        held: HeldMarker | None = control.hold_marker(self.marker()) if self.capture else None
        if self.passed:
            write_pass(control, self.doctor_pass())

        def stop() -> None:
            server.shutdown()
            server.close_connections()
            server.server_close()
            thread.join()
            ring.close()
            if held is not None:
                held.release()

        self._stop.append(stop)

    def stop(self) -> None:
        """End at once, as a killed server does: connections are reset."""
        while self._stop:
            self._stop.pop()()

    def marker(self) -> Marker:
        """What the scheduler process says about itself."""
        return make_marker(
            nonce=NONCE,
            pid=os.getpid(),
            port=self.port,
            model=self.model,
            tokenizer=self.tokenizer,
            config_hash=self.config_hash,
            num_layers=4,
            boundaries=list(self.boundaries),
            dtype="float32",
            hidden_size=self.hidden,
            context_length=self.context_length,
            chunk_size=self.chunk_size,
            sglang_version="0.0.0",
            hs_version="0.0.0",
        )

    def doctor_pass(self) -> DoctorPass:
        """The record of an examination that this server, whose states are made up, is spared."""
        return DoctorPass(
            nonce=NONCE, port=self.port, ranks=1, at_s=0.0, prompts=0, tokens=0, layers_proved=False, notes=[]
        )

    def take(self, rid: str, ids: list[int]) -> Act:
        """Note the request and decide about it."""
        with self._lock:
            assert rid not in self.rids, f"{rid} was sent twice"
            number = len(self.requests)
            self.requests.append((rid, ids))
        return self.act(number, rid, ids)

    def hear(self, rid: str, ids: list[int], sampling: dict[str, Any]) -> Said:
        """Note a request for an answer and decide about it."""
        with self._lock:
            number = len(self.asked)
            self.asked.append((rid, ids, sampling))
        return self.say(number, ids, sampling)

    def write_parts(self, rid: str, ids: list[int], act: Act) -> None:
        """Capture the prompt, a chunk a file; a full scratch fails the request the way the capture does."""
        time.sleep(act.part_delay_s)
        if act.failure:
            with self._lock:
                self._ring.record(rid, act.failure)
            return
        n = len(ids)
        start = act.rows_from
        while act.parts and start < n:
            stop = min(n, start + (self.chunk_size if self.chunk_size > 0 else n))
            states = fake_states(ids, start, stop, slots=len(self.boundaries) + 1, hidden=self.hidden)
            held = ids if act.ids is None else list(act.ids)
            try:
                drop_part(
                    self.scratch,
                    rid,
                    start,
                    stop,
                    n,
                    states=states,
                    ids=held[start:stop],
                    boundaries=self.boundaries,
                    hidden=self.hidden,
                    nonce=NONCE,
                    config_hash=self.config_hash,
                )
            except OSError as error:
                for left in self.scratch.glob(f".{rid}.*.tmp"):
                    left.unlink(missing_ok=True)
                with self._lock:
                    self.no_space += 1
                    self._ring.record(rid, f"cannot write: {error.strerror}")
                return
            start = stop
            if start < n:
                time.sleep(act.chunk_delay_s)

    def restarted(self, **changes: Any) -> FakeServer:
        """A new server on the same port and scratch, not started."""
        return replace(self, _stop=[], _lock=threading.Lock(), **changes)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[Any] = set()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        self._open.add(connection)
        return connection, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Reset what is open."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the game."""


def _handler(fake: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/model_info":
                self._answer(200, {"model_path": fake.model, "tokenizer_path": fake.tokenizer, "is_generation": True})
            elif self.path == "/server_info":
                limit = {"max_req_input_len": fake.longest_prompt + 1} if fake.longest_prompt else {}
                self._answer(200, {**limit, **fake.info})
            else:
                self._answer(200, {})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            rid, ids = body["rid"], body["input_ids"]
            if rid.startswith("hsgen-"):
                self._say(rid, ids, fake.hear(rid, ids, body["sampling_params"]))
                return
            assert body["sampling_params"]["max_new_tokens"] == 0
            act = fake.take(rid, ids)
            if act.abandon:
                time.sleep(act.delay_s)
                if self._client_gone():
                    fake.abandoned.append(rid)
                    self.close_connection = True
                    return
            captured = act.status == 200
            if captured and act.parts_first:
                fake.write_parts(rid, ids, act)
            time.sleep(0 if act.abandon else act.delay_s)
            if captured and not act.parts_first:
                threading.Thread(target=fake.write_parts, args=(rid, ids, act), daemon=True).start()
            if act.vanish:
                self.close_connection = True
                return
            if not captured:
                self._answer(act.status, act.body, raw=act.raw)
                return
            meta = {
                "id": rid,
                "finish_reason": {"type": act.finish_type, "length": 0},
                "prompt_tokens": len(ids) if act.prompt_tokens is None else act.prompt_tokens,
                "cached_tokens": act.cached_tokens,
                "completion_tokens": 0,
            }
            self._answer(200, {"text": "", "output_ids": [], "meta_info": meta})

        def _say(self, rid: str, ids: list[int], said: Said) -> None:
            time.sleep(said.delay_s)
            if said.vanish:
                self.close_connection = True
                return
            if said.status != 200:
                self._answer(said.status, said.body)
                return
            last = said.ids[-1] if said.ids else None
            matched = {} if said.finish != "stop" else {"matched": last if said.matched is None else said.matched}
            meta = {
                "id": rid,
                "finish_reason": {"type": said.finish, **matched},
                "prompt_tokens": len(ids) if said.prompt_tokens is None else said.prompt_tokens,
                "cached_tokens": 0,
                "completion_tokens": len(said.ids) if said.count is None else said.count,
            }
            self._answer(200, {"text": "?", "output_ids": list(said.ids), "meta_info": meta})

        def _client_gone(self) -> bool:
            try:
                peeked: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
                return not peeked
            except BlockingIOError:
                return False
            except OSError:
                return True

        def _answer(self, status: int, body: Any, *, raw: bool = False) -> None:
            data = body.encode() if raw else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextlib.contextmanager
def serving(scratch: Path, **knobs: Any) -> Iterator[FakeServer]:
    """A fake server for the length of a block."""
    server = FakeServer(scratch, **knobs)
    server.start()
    try:
        yield server
    finally:
        server.stop()
