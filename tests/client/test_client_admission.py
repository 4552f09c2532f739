"""Admission: several clients, in any interleaving, never let scratch fill beyond the limit by what was granted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hs_client.admission import (
    CreditView,
    Decision,
    RecordCost,
    ceiling,
    decide,
    needed_before,
    others_promised,
    someone_waits,
)
from hs_client.errors import MoverElsewhere
from hs_client.preflight import Place
from hs_client.settings import RunSettings
from hs_client.storage import Storage
from hs_formats.control import CLIENT_GRACE_S, STALE_S, ClientState, ControlFolder, MoverState, RunState, now_s
from hs_formats.dataset import DatasetPaths
from hs_formats.fixed_record import FixedRecord

LIMIT = 1_000_000
COST = RecordCost(bytes_per_token=1000, copies=1, ranks=1, chunk_tokens=16)


def mover_state(**changes: object) -> MoverState:
    values: dict[str, object] = {
        "pid": 1,
        "mover_id": "m",
        "state": "moving",
        "reason": "",
        "dst": "/d",
        "heartbeat_s": 100.0,
        "last_progress_s": 0.0,
        "capacity_bytes": 2 * LIMIT,
        "reserve_bytes": 0,
        "used_bytes": 0,
        "limit_bytes": LIMIT,
        "low_bytes": LIMIT // 2,
        "backlog_parts": 0,
        "backlog_bytes": 0,
        "in_bytes_per_s": 0.0,
        "out_bytes_per_s": 0.0,
        "codec": "zstd",
        "high": 0.8,
        "low": 0.6,
    }
    return MoverState(**{**values, **changes})  # type: ignore[arg-type]


def view(**changes: object) -> CreditView:
    values: dict[str, object] = {
        "at_s": 100.0,
        "mover": mover_state(),
        "used_bytes": 0,
        "own_bytes": 0,
        "others_bytes": 0,
    }
    return CreditView(**{**values, **changes})  # type: ignore[arg-type]


@given(
    used=st.integers(0, 2 * LIMIT),
    own=st.integers(0, LIMIT),
    others=st.integers(0, LIMIT),
    need=st.integers(1, LIMIT),
    block=st.integers(0, LIMIT),
    backlog=st.integers(0, 1),
)
def test_a_grant_stays_within_the_limit(used: int, own: int, others: int, need: int, block: int, backlog: int) -> None:
    mover = mover_state(backlog_parts=backlog)
    seen = view(mover=mover, used_bytes=used, own_bytes=own, others_bytes=others)
    decision = decide(seen, need, block_bytes=block)
    if decision.verdict == "grant":
        assert need <= decision.lease_bytes <= max(need, block)
        assert used + own + others + decision.lease_bytes <= LIMIT
    else:
        assert used + own + others + need > LIMIT
        assert decision.lease_bytes == 0
        if own or others or backlog:
            assert (decision.verdict, decision.reason) == ("wait", "room in scratch")
        else:
            assert decision.verdict == "later", "nothing that will go away fills scratch"


@pytest.mark.parametrize(
    ("mover", "verdict", "reason"),
    [
        (None, "wait", "never run"),
        (mover_state(heartbeat_s=100.0 - STALE_S), "wait", "silent"),
        (mover_state(state="stopping"), "wait", "stops"),
        (mover_state(state="holding", reason="the destination is full"), "wait", "the destination is full"),
        (mover_state(limit_bytes=10), "never", "more than the limit of 10"),
        (mover_state(limit_bytes=10, state="holding", reason="the destination is full"), "never", "the limit of 10"),
        (mover_state(), "grant", ""),
    ],
)
def test_nothing_is_granted_without_a_mover_that_moves(mover: MoverState | None, verdict: str, reason: str) -> None:
    decision = decide(view(mover=mover), 1000)
    assert decision.verdict == verdict
    assert reason in decision.reason


def test_a_limit_that_is_low_for_a_moment_refuses_nothing_for_good() -> None:
    low = mover_state(limit_bytes=1000, high=0.8)
    assert ceiling(low, 10_000) == 8000
    for need, verdict in ((1000, "grant"), (1001, "later"), (8000, "later"), (8001, "never")):
        assert decide(view(mover=low, ceiling_bytes=ceiling(low, 10_000)), need).verdict == verdict
    assert ceiling(mover_state(reserve_bytes=3000), 2000) == LIMIT
    assert ceiling(None, 5) == 0


def test_who_waits_longer_is_served_first() -> None:
    def state(run: str, since_s: float, need: int, heartbeat_s: float = 100.0, waiting: str = "room") -> ClientState:
        return ClientState(
            run=run,
            pid=1,
            heartbeat_s=heartbeat_s,
            promised_bytes=0,
            waiting=waiting,
            need_bytes=need,
            waiting_since_s=since_s,
        )

    clients = [
        state("first", 90.0, 500),
        state("me", 95.0, 1),
        state("tied", 95.0, 30),
        state("later", 96.0, 7000),
        state("silent", 80.0, 10_000, heartbeat_s=100.0 - STALE_S),
        state("served", 0.0, 0, waiting=""),
        state("huge", 70.0, LIMIT + 1),
    ]
    assert needed_before(clients, "me", 95.0, at_s=100.0, limit_bytes=LIMIT) == 500
    assert needed_before(clients, "tied", 95.0, at_s=100.0, limit_bytes=LIMIT) == 501
    assert needed_before(clients, "first", 90.0, at_s=100.0, limit_bytes=LIMIT) == 0


def test_small_records_do_not_overtake_a_large_one_for_ever() -> None:
    small, large = LIMIT // 10, LIMIT * 9 // 10
    running = [small] * 10
    waiting = ClientState(
        run="b", pid=2, heartbeat_s=100.0, promised_bytes=0, waiting="room", need_bytes=large, waiting_since_s=99.0
    )
    for _ in range(8):
        running.pop()
        before = needed_before([waiting], "a", 100.0, at_s=100.0, limit_bytes=LIMIT)
        assert decide(view(own_bytes=sum(running), before_bytes=before), small).verdict == "wait"
        assert decide(view(others_bytes=sum(running)), large).verdict == "wait"
    running.pop()
    assert decide(view(others_bytes=sum(running)), large).verdict == "grant"


def test_a_dead_clients_promise_counts_for_the_grace_period() -> None:
    def state(run: str, heartbeat_s: float, waiting: str = "") -> ClientState:
        return ClientState(run=run, pid=1, heartbeat_s=heartbeat_s, promised_bytes=7, waiting=waiting)

    clients = [state("me", 100.0), state("alive", 99.0), state("dying", 100.0 - STALE_S - 1, "room")]
    clients.append(state("dead", 100.0 - STALE_S - CLIENT_GRACE_S))
    assert others_promised(clients, "me", 100.0) == 14
    assert not someone_waits(clients, "me", 100.0)
    assert someone_waits([*clients, state("queued", 98.0, "room")], "me", 100.0)


@given(n=st.integers(1, 5000), chunk=st.integers(-1, 700), first=st.integers(1, 700), data=st.data())
def test_the_bound_on_a_record_holds_for_every_way_to_chunk_it(
    n: int, chunk: int, first: int, data: st.DataObject
) -> None:
    cost = RecordCost.of(writers="first", ranks=1, bytes_per_token=96, chunk_tokens=chunk)
    chunks = [n]
    if chunk > 0:  # the first chunk fills what a batch has left, the last takes the rest
        chunks = [min(n, first, chunk)]
        while sum(chunks) < n:
            chunks.append(min(chunk, n - sum(chunks)))
    assert len(chunks) <= cost.parts(n)
    total, seen_rows = cost.record(n), 0
    for seen_parts, rows in enumerate(chunks, 1):
        seen_rows += rows
        rest = cost.rest(n, seen_rows=seen_rows, seen_parts=seen_parts)
        assert rest <= total - rows * (96 + 8)
        total = rest
    assert total == 0


def test_every_copy_counts_when_all_ranks_write() -> None:
    def record(writers: Literal["first", "spread", "all"]) -> int:
        return RecordCost.of(writers=writers, ranks=2, bytes_per_token=1000, chunk_tokens=0).record(10)

    rows, file = 10 * 1008, 8192
    assert (record("first"), record("spread"), record("all")) == (rows + file, rows + 2 * file, 2 * rows + 2 * file)


@dataclass
class _Request:
    n: int
    written: int = 0
    seen: int = 0
    ended: bool = False

    def promised(self) -> int:
        return 0 if self.ended else COST.rest(self.n, seen_rows=self.seen, seen_parts=-(-self.seen // 16))


@dataclass
class _Client:
    published: int = 0
    published_at_s: float = 0.0
    waiting: str = ""
    need: int = 0
    since_s: float = 0.0
    lease: int = 0
    alive: bool = True
    requests: list[_Request] = field(default_factory=list)

    def own(self) -> int:
        return sum(request.promised() for request in self.requests)


class Admission(RuleBasedStateMachine):
    """Clients follow the protocol step by step; the server writes what was granted whenever it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.clients = [_Client() for _ in range(3)]
        self.ours = 0
        self.foreign = 0
        self.foreign_since = 0
        for client in self.clients:
            self._publish(client)

    def _publish(self, client: _Client) -> None:
        client.published = client.own() + client.lease
        client.published_at_s = self.now_s

    def _states(self) -> list[ClientState]:
        return [
            ClientState(
                run=str(at),
                pid=1,
                heartbeat_s=c.published_at_s,
                promised_bytes=c.published,
                waiting=c.waiting,
                need_bytes=c.need,
                waiting_since_s=c.since_s,
            )
            for at, c in enumerate(self.clients)
        ]

    @rule(at=st.integers(0, 2), n=st.integers(1, 120), block=st.sampled_from([0, 50_000, 400_000]))
    def take(self, at: int, n: int, block: int) -> None:
        client = self.clients[at]
        need = COST.record(n)
        if not client.alive:
            return
        if need <= client.lease:
            client.lease -= need
            client.requests.append(_Request(n))
            return
        self.now_s += 0.001
        states = self._states()
        since_s = client.since_s or self.now_s
        # Own requests have `seen` of an earlier listing: others' promises and the fill are read after it.
        decision = decide(
            CreditView(
                at_s=self.now_s,
                mover=mover_state(heartbeat_s=self.now_s),
                used_bytes=self.ours + self.foreign,
                own_bytes=client.own(),
                others_bytes=others_promised(states, str(at), self.now_s),
                before_bytes=needed_before(states, str(at), since_s, at_s=self.now_s, limit_bytes=LIMIT),
            ),
            need,
            block_bytes=0 if someone_waits(states, str(at), self.now_s) else block,
        )
        client.lease = decision.lease_bytes
        waits = decision.verdict == "wait"
        client.waiting, client.need, client.since_s = (decision.reason, need, since_s) if waits else ("", 0, 0.0)
        if waits and all(since_s < other.since_s for other in self.clients if other.waiting and other is not client):
            others = others_promised(states, str(at), self.now_s)
            assert need > LIMIT - self.ours - self.foreign - client.own() - others, "the first one waits for nobody"
        if decision.verdict == "grant":
            client.lease -= need
            client.requests.append(_Request(n))
            self.foreign_since = 0
        self._publish(client)

    def _writable(self) -> list[_Request]:
        return [r for c in self.clients for r in c.requests if r.written < r.n and not r.ended]

    @precondition(lambda self: self._writable())
    @rule(data=st.data())
    def part_appears(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self._writable()))
        rows = min(16, request.n - request.written)
        request.written += rows
        self.ours += rows * 1008 + 4096  # less than the bound allows

    @rule(at=st.integers(0, 2))
    def client_lists_its_parts(self, at: int) -> None:
        for request in self.clients[at].requests:
            request.seen = request.written

    @rule(at=st.integers(0, 2))
    def heartbeat(self, at: int) -> None:
        if self.clients[at].alive:
            self._publish(self.clients[at])

    @rule(share=st.floats(0, 1))
    def mover_moves(self, share: float) -> None:
        self.ours -= int(self.ours * share)

    @precondition(lambda self: self._writable())
    @rule(data=st.data())
    def attempt_ends(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self._writable())).ended = True

    @rule(amount=st.integers(0, LIMIT // 4))
    def somebody_else_fills(self, amount: int) -> None:
        self.foreign += amount
        self.foreign_since += amount

    @rule()
    def somebody_else_frees(self) -> None:
        self.foreign = self.foreign_since = 0

    @rule(at=st.integers(0, 2))
    def client_dies(self, at: int) -> None:
        """Its requests in flight go on writing for a while; the grace period covers them."""
        self.clients[at].alive = False

    @rule(at=st.integers(0, 2))
    def client_is_replaced_after_the_grace_period(self, at: int) -> None:
        if self.clients[at].alive:
            return
        self.now_s += STALE_S + CLIENT_GRACE_S + 1
        for client in self.clients:
            if client.alive:
                self._publish(client)
        for request in self.clients[at].requests:
            request.ended = True
        self.clients[at] = _Client()
        self._publish(self.clients[at])

    @invariant()
    def everything_granted_still_fits(self) -> None:
        to_come = sum(r.n * 1008 + 8192 for r in self._writable())
        to_come -= sum(r.written * 1008 for r in self._writable())
        assert self.ours + self.foreign - self.foreign_since <= LIMIT
        if not self.foreign:
            assert self.ours + max(0, to_come - 8192 * len(self._writable())) <= LIMIT

    @invariant()
    def an_empty_scratch_grants(self) -> None:
        """No deadlock: when nothing is written, promised or leased, whatever fits is granted."""
        if any(c.own() or c.lease or c.published for c in self.clients) or self.ours or self.foreign:
            return
        assert decide(view(at_s=100.0), LIMIT).verdict == "grant"

    def teardown(self) -> None:
        """Let everything finish: every client can then be served."""
        for client in self.clients:
            for request in client.requests:
                request.seen = request.written = request.n
            client.lease = 0
            self._publish(client)
        self.ours = self.foreign = 0
        total = sum(client.published for client in self.clients)
        assert total == 0


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_a_mover_that_stays_elsewhere_ends_the_run_in_the_end(tmp_path: Path) -> None:
    control = ControlFolder(tmp_path / "scratch")
    control.create()
    control.register_run(RunState(run="0000000a", dataset="p", pid=1))
    (tmp_path / "dst").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "dst")
    paths = DatasetPaths(tmp_path / "dst" / "p")

    async def play(record: FixedRecord) -> None:
        def mover_stores_to(dst: Path, progress_s: float) -> MoverState:
            mover = mover_state(
                dst=str(dst),
                heartbeat_s=now_s(),
                last_progress_s=progress_s,
                limit_bytes=1 << 50,
                capacity_bytes=1 << 50,
            )
            record.write(asdict(mover))
            return mover

        place = Place(control, mover_stores_to(tmp_path / "dst", 1.0), paths)
        patient = RunSettings(files=[], mover_timeout_s=5)
        storage = Storage(patient, place, run="0000000a", settle=lambda attempt, verdict: None, status=str)
        began_s = anyio.current_time()

        async def look(after_s: float) -> Decision:
            await storage.beat()
            decision = await storage.keeper.take(100)
            storage.keeper.waiting = decision.reason
            storage.check(began_s + after_s, left=7)
            return decision

        assert (await look(0)).verdict == "grant"
        for after_s in (1.0, 4.0, 5.5):  # it moves what is others', which is no progress here
            mover_stores_to(tmp_path / "other", after_s)
            decision = await look(after_s)
            assert (decision.verdict, "it stores to" in decision.reason) == ("wait", True)
        with pytest.raises(MoverElsewhere, match=r"stores to .*/other now, .* lies in .*/dst; 7 samples are pending"):
            await look(7.0)
        mover_stores_to(tmp_path / "link", 9.0)
        assert (await look(7.5)).verdict == "grant"

    with FixedRecord(control.mover_file) as record:
        anyio.run(play, record)
