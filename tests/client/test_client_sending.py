"""Requests that end in every way there is: none leaves a slot, a token or a connection behind."""

from __future__ import annotations

import random
import ssl
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from hs_client import backend as backend_module
from hs_client._http import Busy, Denied, Lost, Refused, Unreachable, shared_tls
from hs_client.attempt import Answer, Attempt
from hs_client.backend import Backend
from hs_client.errors import ServerDenies
from hs_client.prepare import Prepared
from hs_client.sending import Sender
from hs_client.settings import RunSettings
from hs_client.tally import Tally
from hs_client.work import Item

pytestmark = pytest.mark.anyio

COUNT = 400


class StrawClient:
    """Answers after a moment, or fails as the dice say."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.in_use = False

    async def generate(self, rid: str, ids: Any) -> Answer:
        assert not self.in_use, "one request a connection"
        self.in_use = True
        try:
            await anyio.sleep(random.random() * 0.01)
            kind = random.choice([None, None, None, Lost, Busy, Unreachable, Refused])
            if kind is not None:
                raise kind("as the dice say")
            return Answer("length", "", len(ids), 0)
        finally:
            self.in_use = False

    async def close(self) -> None:
        assert not self.in_use


class Notes:
    """Stands for everything that a sender tells something to."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.dropped: list[Exception] = []

    async def commit(self, *lines: Any) -> None:
        await anyio.lowlevel.checkpoint()

    async def give_up(self, item: Item, verdict: Any, rid: str = "") -> None:
        self.ends.append(verdict.kind)

    async def again(self, item: Item, verdict: Any, *, pause_s: float = 0.0) -> None:
        self.ends.append(verdict.kind)

    async def note_failed(self, *_: Any) -> None:
        await anyio.lowlevel.checkpoint()

    def forget(self, attempt: Any) -> None:
        pass

    def failing(self, *_: Any) -> None:
        pass

    def drop(self, backend: Backend, error: Exception) -> None:
        self.dropped.append(error)
        backend.drop()


@pytest.fixture
def tls() -> ssl.SSLContext:
    return shared_tls()  # before there is an event loop


@pytest.fixture
async def made(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> tuple[Backend, Sender, Notes]:
    monkeypatch.setattr(backend_module, "ServerClient", StrawClient)
    marker = SimpleNamespace(
        writers="first", expected_ranks=[0], bytes_per_token=96, chunk_size=16, context_length=100, port=1
    )
    server: Any = SimpleNamespace(url="http://h:1", port=1, marker=marker, longest_prompt=0)
    notes = Notes()

    def answered(*_: Any) -> None:
        notes.ends.append("answered")

    def nothing(*_: Any) -> None:
        pass

    correlator = SimpleNamespace(add=nothing, answered=answered, lost=nothing, drop=nothing)
    storage: Any = SimpleNamespace(correlator=correlator, place=SimpleNamespace(control=None))
    settings = RunSettings(files=[], concurrency=16)
    backend = Backend(settings, server, storage, tls=tls, left=lambda: 1, changed=lambda: None)
    everything: Any = notes
    sender = Sender(everything, Tally(), everything, everything, announce=lambda _: None)
    return backend, sender, notes


def item(row: int) -> Item:
    n = 1 + row % 20
    return Item(Prepared(f"s{row}", f"f:{row}", np.zeros(n, dtype=np.int32), [(0, n)], ""), row)


async def _send_all(backend: Backend, sender: Sender, *, drop_at: int = -1) -> int:
    sent = 0
    slots = anyio.Semaphore(16)

    async def send(one: Item, attempt: Attempt) -> None:
        await sender.send(backend, one, attempt)
        slots.release()

    async with anyio.create_task_group() as group:
        for row in range(COUNT):
            if row == drop_at:
                backend.drop()
                break
            await slots.acquire()
            one = item(row)
            group.start_soon(send, one, backend.attempt("00000001", one))
            sent += 1
            assert backend.in_flight <= 16
    return sent


@pytest.mark.parametrize("drop_at", [-1, 150])
async def test_nothing_is_left_behind(made: tuple[Backend, Sender, Notes], drop_at: int) -> None:
    backend, sender, notes = made
    with anyio.fail_after(60):
        sent = await _send_all(backend, sender, drop_at=drop_at)
    assert (backend.in_flight, backend.tokens, len(backend._scopes)) == (0, 0, 0)
    assert len(backend._idle) == len(backend._clients) <= 16
    assert len(notes.ends) == sent, "every request has ended in one way"
    assert {"answered", "lost", "not taken", "refused"} == set(notes.ends)
    await backend.close()


async def test_another_key_is_asked_for_and_the_row_kept(
    made: tuple[Backend, Sender, Notes], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, sender, notes = made

    async def deny(self: StrawClient, rid: str, ids: Any) -> Answer:
        raise Denied("HTTP 401: Unauthorized")

    monkeypatch.setattr(StrawClient, "generate", deny)
    one = item(0)
    await sender.send(backend, one, backend.attempt("00000001", one))
    assert notes.ends == ["not taken"]
    assert [type(error) for error in notes.dropped] == [ServerDenies]
    assert (backend.in_flight, backend.dropped) == (0, True)
