"""The holder and the clients' books together, without processes: messages are late, clients die, nothing is lost."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from hs_client.errors import InputsDiffer, LeasesBroken, NodesApart
from hs_client.leases.feed import Feed
from hs_client.leases.holder import Answers, Holder
from hs_client.leases.protocol import (
    ClientMessage,
    Ended,
    Finish,
    Hello,
    HolderMessage,
    Lease,
    Over,
    Shrink,
    Shrunk,
    State,
    Want,
    client_message,
    encode_line,
    holder_message,
)
from hs_client.tally import End

ROWS = 60
ENDS: tuple[End, ...] = ("done", "adopted", "failed", "rejected", "elsewhere")


def hello(run: str = "00000001", *, rows: int = ROWS, inputs: str = "same") -> Hello:
    return Hello(run=run, rows=rows, left=rows, inputs_hash=inputs)


def samples_of(row: int) -> int:
    """Some rows have none, some several."""
    return (1, 1, 0, 3, 1)[row % 5]


class StrawClient:
    """What a client does, one step at a time, with a queue of `unsent` samples by their row numbers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.feed = Feed()
        self.heard: deque[HolderMessage] = deque()
        self.said: deque[ClientMessage] = deque([hello()])
        self.unsent: list[int] = []
        self.flying: list[int] = []
        self.piece: list[int] | None = None
        self.finished = False

    def step(self, choice: int) -> Counter[End]:
        """Do one of the things that can be done; returns how samples have ended."""
        ends: Counter[End] = Counter()
        match choice % 6:
            case 0 if self.heard:
                self._hear(self.heard.popleft())
            case 1:
                self.said.extend(self.feed.ended())
            case 2:
                self._read(ends, at_once=choice // 6 % 3)
            case 3 if self.unsent:
                self.flying.append(self.unsent.pop(0))
            case 4 if self.flying:
                how = ENDS[choice // 6 % len(ENDS)]
                ends[how] += 1
                self.feed.end(self.flying.pop(choice // 6 % len(self.flying)), how)
            case 5 if not self.feed.unread and not self.finished:
                self.said.append(Want(idle=not self.unsent))
            case _:
                pass
        return ends

    def _hear(self, message: HolderMessage) -> None:
        match message:
            case Lease():
                self.feed.lease(message.start, message.stop)
            case Shrink():
                given = self.feed.give_back(message.nodes, Counter(self.unsent))
                kept = [number for number in self.unsent if number not in set(given.withdrawn)]
                assert len(self.unsent) - len(kept) == given.samples
                self.unsent = kept
                self.said.append(Shrunk(ranges=given.ranges))
            case Finish():
                self.finished = True
                assert self.feed.quiet

    def _read(self, ends: Counter[End], *, at_once: int) -> None:
        """The last `at_once` samples of a batch end as soon as they are read: others had them done before."""
        if self.piece is None:
            piece = self.feed.next(lambda start, stop: min(stop, start + 7))
            self.piece = None if piece is None else [row for row in range(*piece) for _ in range(samples_of(row))]
        elif self.piece:
            batch, self.piece = self.piece[:4], self.piece[4:]
            self.feed.took(batch)
            kept = max(0, len(batch) - at_once)
            self.unsent += batch[:kept]
            for number in batch[kept:]:
                ends["elsewhere"] += 1
                self.feed.end(number, "elsewhere")
        else:
            self.feed.through()
            self.piece = None


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_whatever_happens_every_row_ends_and_is_counted_once(data: st.DataObject) -> None:
    holder = Holder(nodes=2)
    clients: dict[str, StrawClient] = {}
    ends: dict[str, Counter[End]] = {}
    names = (f"n{number}" for number in range(100))
    on_the_way = Counter[int]()

    def tell(answers: Answers) -> None:
        for name, message in answers:
            if name in clients:
                clients[name].heard.append(message)

    def deliver(client: StrawClient) -> None:
        if client.said:
            message = client.said.popleft()
            if isinstance(message, Ended):
                on_the_way.update(range(message.start, message.stop))
                want = sum(samples_of(row) for row in range(message.start, message.stop))
                assert message.done + message.failed + message.rejected + message.elsewhere == want
            tell(holder.heard(client.name, message))

    def birth() -> None:
        name = next(names)
        clients[name] = StrawClient(name)
        ends[name] = Counter()

    birth()
    birth()
    for _ in range(data.draw(st.integers(0, 150))):
        client = clients[data.draw(st.sampled_from(sorted(clients)))]
        what = data.draw(st.integers(0, 40))
        if what == 40:
            del clients[client.name]
            tell(holder.lost(client.name))
            birth()
        elif what > 25:
            deliver(client)
        else:
            ends[client.name] += client.step(data.draw(st.integers(0, 119)))
    for turn in range(20_000):  # from here on nobody dies: the work must come to an end
        if all(client.finished for client in clients.values()):
            break
        for client in list(clients.values()):
            client.step(turn)
            deliver(client)
    assert holder.finished
    assert sorted(on_the_way) == list(range(ROWS))
    assert set(on_the_way.values()) == {1}
    totals = holder.totals
    assert totals.done + totals.failed + totals.rejected + totals.elsewhere == sum(map(samples_of, range(ROWS)))


def test_a_client_with_other_files_is_refused_by_name_and_gets_nothing() -> None:
    holder = Holder(nodes=2)
    assert not holder.finished
    assert holder.heard("a", hello()) == []
    for other in (hello(inputs="other"), hello(rows=ROWS + 1)):
        with pytest.raises(InputsDiffer, match="b has other prompts files than a: put the same ones on every node"):
            holder.heard("b", other)
    with pytest.raises(LeasesBroken, match="b has not said hello"):
        holder.heard("b", Want())
    with pytest.raises(LeasesBroken, match="a has joined already"):
        holder.heard("a", hello())
    with pytest.raises(LeasesBroken, match="a does not hold rows 0 to 1"):
        holder.heard("a", Ended(start=0, stop=1))


def test_a_client_that_stores_to_another_place_is_refused_whatever_its_path_is() -> None:
    def at(dataset: str, *marks: str) -> Hello:
        return replace(hello(), dataset=dataset, marks=marks)

    holder = Holder(nodes=2)
    holder.heard("a", at("/data/p", "file 7", "made 70"))
    with pytest.raises(NodesApart, match="b stores to /data/p, which is not the same place as /data/p of a: one"):
        holder.heard("b", at("/data/p", "file 8", "made 80"))
    with pytest.raises(LeasesBroken, match="b has not said hello"):
        holder.heard("b", Want())
    for number, marks in enumerate((("file 7", "made 80"), ("file 8", "made 70"), ())):
        holder.heard(f"c{number}", at("/mnt/p", *marks))


def test_who_is_idle_makes_another_one_give_and_gets_it() -> None:
    holder = Holder(nodes=1)
    for name in ("a", "b", "c"):
        assert holder.heard(name, hello(name, rows=20)) == []
    assert holder.heard("a", Want(idle=True)) == [("a", Lease(start=0, stop=16))]
    assert holder.heard("b", Want()) == [("b", Lease(start=16, stop=20))]
    assert holder.heard("b", State(done=1)) == []
    assert holder.heard("c", Want()) == []  # not worth stealing for
    assert holder.heard("c", Want(idle=True)) == [("a", Shrink(nodes=1))]
    assert holder.heard("b", Ended(start=16, stop=20, done=4)) == []
    assert holder.heard("b", Want(idle=True)) == []  # one that is asked already is not asked again
    assert holder.heard("a", Shrunk(ranges=((12, 16),))) == [
        ("c", Lease(start=12, stop=14)),
        ("b", Lease(start=14, stop=16)),
    ]
    assert holder.lost("c") == []
    assert holder.heard("b", Ended(start=14, stop=16, failed=2)) == []
    assert holder.heard("b", Want()) == [("b", Lease(start=12, stop=14))]
    assert holder.heard("b", Ended(start=12, stop=14, done=2)) == []
    assert holder.heard("a", Ended(start=0, stop=12, done=12)) == [("a", Finish()), ("b", Finish())]
    assert holder.heard("a", Over(exit_code=0)) == []
    assert (holder.totals.done, holder.totals.failed) == (18, 2)
    # One that comes late is told at once.
    assert holder.heard("d", hello(rows=20)) == [("d", Finish())]


def test_the_rows_of_a_client_that_ends_before_its_time_go_to_who_wants_them() -> None:
    holder = Holder(nodes=1)
    holder.heard("a", hello(rows=4))
    holder.heard("b", hello(rows=4))
    assert holder.heard("a", Want()) == [("a", Lease(start=0, stop=4))]
    assert holder.heard("b", Want()) == []
    assert holder.heard("a", Over(exit_code=4, error="the server is lost")) == [("b", Lease(start=0, stop=4))]


def test_what_is_given_back_is_unsent_and_leaves_a_part_behind() -> None:
    feed = Feed()
    feed.lease(0, 10)
    feed.lease(20, 30)
    assert feed.next(lambda start, stop: start + 8) == (0, 8)
    feed.took([0, 1, 2, 2, 4])
    assert feed.give_back(99, {4: 1}).ranges == ((8, 10), (20, 30))  # of row 4 there may be more
    feed.lease(8, 10)
    feed.lease(20, 30)
    feed.through()
    with pytest.raises(ValueError, match="rows 4 to 5 are leased already"):
        feed.lease(4, 5)
    feed.end(0, "done")
    assert [(each.start, each.stop, each.done) for each in feed.ended()] == [(0, 1, 1), (3, 4, 0), (5, 8, 0)]
    # Row 1 is on its way, of row 2 one sample: 12 rows were never taken up and row 4 waits.
    given = feed.give_back(1, {2: 1, 4: 1})
    assert (given.ranges, given.withdrawn, given.samples) == (((23, 30),), [], 0)
    given = feed.give_back(6, {2: 2, 4: 1})
    assert (given.ranges, given.withdrawn, given.samples) == (((4, 5), (8, 10), (20, 23)), [4], 1)
    assert feed.give_back(1, {}).ranges == ()
    given = feed.give_back(1, {2: 2})
    assert (given.ranges, given.samples) == (((2, 3),), 2)
    feed.end(1, "failed")
    assert feed.quiet
    assert [(each.start, each.stop, each.failed) for each in feed.ended()] == [(1, 2, 1)]


def test_a_row_that_ends_before_the_next_batch_is_read_is_not_forgotten() -> None:
    feed = Feed()
    feed.lease(0, 5)
    feed.next(lambda start, stop: stop)
    feed.took([0, 1])
    feed.end(1, "elsewhere")
    assert feed.ended() == []  # there may be more of it
    feed.took([1, 3])
    feed.end(1, "elsewhere")
    feed.end(3, "rejected")
    feed.end(0, "done")
    feed.took([4])
    feed.end(4, "done")
    assert [(each.start, each.stop) for each in feed.ended()] == [(0, 2), (3, 4)]
    feed.through()
    assert [(each.start, each.stop) for each in feed.ended()] == [(2, 3), (4, 5)]
    assert feed.quiet


@given(
    st.one_of(
        st.builds(Hello, run=st.text(), rows=st.integers(0), left=st.integers(0), inputs_hash=st.text()),
        st.builds(Want, idle=st.booleans()),
        st.builds(Shrunk, ranges=st.just(((1, 2), (5, 9)))),
        st.builds(Ended, start=st.integers(0, 5), stop=st.integers(6, 9), done=st.integers(0)),
        st.builds(State, done=st.integers(0), text=st.text(), tokens_per_s=st.floats(0, 1e9)),
        st.builds(Over, exit_code=st.integers(0, 130), error=st.text(), summary=st.just({"a": {"b": [1]}})),
    )
)
def test_a_message_survives_its_line(message: ClientMessage) -> None:
    line = encode_line(message)
    assert line.count(b"\n") == 1
    assert client_message(line.rstrip(b"\n")) == message


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"type":"dance"}',
        b'{"type":"lease","start":3}',
        b'{"type":"lease","start":3,"stop":3}',
        b'{"type":"lease","start":-1,"stop":3}',
        b'{"type":"lease","start":"a","stop":3}',
        b'{"type":"want"}',
        b'\xff{"type":"finish"}',
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(LeasesBroken, match="have the same version of hs-extract on every node"):
        holder_message(line)


def test_ranges_without_rows_are_no_message() -> None:
    with pytest.raises(LeasesBroken, match="ranges that hold no rows"):
        client_message(b'{"type":"shrunk","ranges":[[4,4]]}')
    assert holder_message(b'{"type":"finish"}') == Finish()
