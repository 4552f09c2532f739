"""Clients on leased rows, as processes against fake servers: each row ends once, whoever dies, lags or is late."""

from __future__ import annotations

import gzip
import json
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from chain import MoverProcess
from client_runs import Ledgers, argv, check_records, ids_of, prompts, rows_of
from fake_server import Act, FakeServer, Said, fake_answer, serving
from hs_client.leases.protocol import Ended, Hello, Shrunk
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Done, Intent, Rejected
from hs_formats.responses import iter_facts
from lease_holder import Client, LeaseHolder, holding

ROWS = rows_of(70)
FEW = ("--concurrency", "4")


def begin(holder: LeaseHolder, name: str, server: FakeServer, files: Sequence[Path], *options: str) -> Client:
    return holder.start(name, argv(server, files, "--dataset", "p", *FEW, *options))


class Slow:
    """Answers after `seconds`, once it is open."""

    def __init__(self, seconds: float) -> None:
        self.open = threading.Event()
        self._seconds = seconds

    def __call__(self, number: int, rid: str, ids: list[int]) -> Act:
        self.open.wait(90)
        return Act(delay_s=self._seconds)


def begin_both(
    holder: LeaseHolder, gate: Slow, servers: Sequence[FakeServer], files: Sequence[Path], *options: str
) -> list[Client]:
    """A client for each server; nothing is answered before both take part, however long each takes to start."""
    clients = [begin(holder, name, server, files, *options) for name, server in zip("ab", servers, strict=True)]
    holder.wait_until(lambda: all(client.of(Hello) for client in clients))
    gate.open.set()
    return clients


def sent(*servers: FakeServer) -> Counter[tuple[int, ...]]:
    """How often each prompt was sent."""
    return Counter(tuple(ids) for server in servers for _, ids in server.requests)


def covered(clients: Sequence[Client]) -> list[int]:
    """Row numbers that were said to have ended, each as often as that."""
    said = [message for client in clients for message in client.of(Ended) if isinstance(message, Ended)]
    return sorted(row for message in said for row in range(message.start, message.stop))


def summaries(clients: Sequence[Client]) -> Counter[str]:
    """The samples of all summaries."""
    found: Counter[str] = Counter()
    for client in clients:
        assert client.over is not None, client.text
        found.update(client.over.summary["samples"])
    return found


def test_two_clients_bring_every_row_to_an_end_once(movers: list[MoverProcess], tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", ROWS)
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.05))) as one,
        serving(movers[1].scratch, act=gate) as two,
        holding(tmp_path) as holder,
    ):
        clients = begin_both(holder, gate, [one, two], [file])
        assert holder.wait() == [0, 0], [client.text for client in clients]
        assert holder.holder.finished
    check_records(tmp_path / "dst" / "p", ids_of(ROWS))
    assert max(sent(one, two).values()) == 1
    assert min(len(one.requests), len(two.requests)) >= 10
    assert covered(clients) == list(range(70))
    found = summaries(clients)
    assert (found["done"], found["pending"], found["failed"]) == (70, 0, 0)
    assert holder.holder.totals.done == 70
    hello, other = (client.of(Hello)[0] for client in clients)
    assert isinstance(hello, Hello)
    assert isinstance(other, Hello)
    assert (hello.rows, hello.left, hello.done) == (70, 70, 0)
    assert hello.marks == other.marks != ()
    for client, server in zip(clients, (one, two), strict=True):
        assert f"samples    {len(server.requests)} done, 0 failed, 0 rejected, 0 done earlier" in client.text
        assert "to go on" not in client.text
        assert "works on this dataset too" not in client.text


def test_the_rows_of_a_killed_client_go_to_the_other_and_nothing_done_is_sent_again(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    file = prompts(tmp_path / "p.jsonl", ROWS)
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.1))) as one,
        serving(movers[1].scratch, act=gate) as two,
        holding(tmp_path) as holder,
    ):
        clients = begin_both(holder, gate, [one, two], [file])
        dataset = tmp_path / "dst" / "p"
        holder.wait_until(lambda: len(two.requests) >= 12 and holder.clients["b"].of(Ended))
        clients[1].process.kill()
        clients[1].process.wait()
        done_then = {line.sample_id for line in Ledgers.of(dataset).kinds(Done)}
        sent_then = len(one.requests)
        assert holder.wait()[0] == 0, clients[0].text
        assert holder.holder.finished
    check_records(dataset, ids_of(ROWS))
    by_ids = {tuple(row["input_ids"]): row["id"] for row in ROWS}
    again = {by_ids[tuple(ids)] for _, ids in one.requests[sent_then:]}
    assert not again & done_then
    assert covered(clients) == list(range(70))
    assert holder.holder.totals.done + holder.holder.totals.elsewhere == 70


def test_the_unsent_rows_of_a_slow_client_are_stolen(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(60, longest=10)
    file = prompts(tmp_path / "p.jsonl", rows)
    go_on = threading.Event()

    def hold(number: int, rid: str, ids: list[int]) -> Act:
        go_on.wait(60)
        return Act()

    with (
        serving(movers[0].scratch, act=hold) as lame,
        serving(movers[1].scratch) as quick,
        holding(tmp_path) as holder,
    ):
        clients = [begin(holder, "lame", lame, [file])]
        holder.wait_until(lambda: len(lame.requests) == 4)
        clients.append(begin(holder, "quick", quick, [file]))
        # All but the requests in flight and the one that is next.
        holder.wait_until(lambda: len(quick.requests) == 55)
        go_on.set()
        assert holder.wait() == [0, 0], [client.text for client in clients]
    check_records(tmp_path / "dst" / "p", ids_of(rows))
    assert max(sent(lame, quick).values()) == 1
    given = [message for message in clients[0].of(Shrunk) if isinstance(message, Shrunk) and message.ranges]
    assert given, "nothing was stolen"
    assert covered(clients) == list(range(60))
    found = summaries(clients)
    assert (found["done"], found["pending"]) == (60, 0)


def test_rejected_and_doubled_rows_are_reported_once_by_who_holds_them(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    good = rows_of(50)
    lines = [json.dumps(row) for row in good]
    anonymous = json.dumps({"input_ids": [9, 8, 7]})
    lines[5:5] = ["", "no row", anonymous]
    lines += ["", json.dumps({**good[3], "input_ids": [1]}), json.dumps(good[30]), anonymous, '{"id": "x"}', ""]
    first, second = tmp_path / "p.jsonl", tmp_path / "q.jsonl"
    first.write_text("\n".join(lines[:30]) + "\n\n\n")
    second.write_text("\n".join(lines[30:]))
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.1))) as one,
        serving(movers[1].scratch, act=gate) as two,
        holding(tmp_path) as holder,
    ):
        clients = begin_both(holder, gate, [one, two], [first, second])
        codes = holder.wait()
    assert 1 in codes
    found = summaries(clients)
    counts = (found["done"], found["rejected"], found["identical"], found["pending"])
    assert counts == (51, 4, 1, 0), [client.text for client in clients]
    rejected = Counter(line.row for line in Ledgers.of(tmp_path / "dst" / "p").kinds(Rejected))
    assert rejected == Counter([f"{first}:7", *(f"{second}:{number}" for number in (25, 26, 28))])
    totals = holder.holder.totals
    assert (totals.done, totals.rejected, totals.elsewhere) == (51, 4, 0)
    assert max(sent(one, two).values()) == 1
    hello = holder.holder.first
    assert hello is not None
    assert (hello.rows, hello.left, hello.identical, hello.rejected) == (58, 51, 1, 4)

    # Repeated, nothing is left; what is rejected is reported once more.
    with serving(movers[0].scratch) as one, holding(tmp_path / "again", nodes=1) as holder:
        client = begin(holder, "a", one, [first, second])
        assert holder.wait() == [1], client.text
    assert not one.requests
    found = summaries([client])
    assert (found["done"], found["done_earlier"], found["rejected"], found["identical"]) == (0, 51, 4, 1)


def test_the_death_of_the_holder_interrupts_the_clients_and_loses_nothing(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    file = prompts(tmp_path / "p.jsonl", ROWS)
    dataset = tmp_path / "dst" / "p"
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.2))) as one,
        serving(movers[1].scratch, act=gate) as two,
    ):
        with holding(tmp_path) as holder:
            clients = begin_both(holder, gate, [one, two], [file])
            holder.wait_until(lambda: len(one.requests) > 8 and len(two.requests) > 8)
            holder.die()
            assert holder.wait() == [130, 130], [client.text for client in clients]
        for client in clients:
            assert "interrupted: nobody holds the leases any more; nothing more is sent" in client.text
            assert " pending" in client.text
        ledgers = Ledgers.of(dataset)
        done = {line.sample_id for line in ledgers.kinds(Done)}
        assert len(done) == len(ledgers.kinds(Intent)), "what was in flight was stored"
        assert 16 < len(done) < 70
        before = sum(sent(one, two).values())
        with holding(tmp_path / "again") as holder:
            clients = begin_both(holder, gate, [one, two], [file])
            assert holder.wait() == [0, 0], [client.text for client in clients]
    assert sum(sent(one, two).values()) == 70 > before
    check_records(dataset, ids_of(ROWS))


def test_a_signal_drains_a_client_and_its_rows_go_to_the_other(movers: list[MoverProcess], tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", ROWS)
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.2))) as one,
        serving(movers[1].scratch, act=gate) as two,
        holding(tmp_path) as holder,
    ):
        clients = begin_both(holder, gate, [one, two], [file])
        holder.wait_until(lambda: len(two.requests) > 8)
        clients[1].process.send_signal(signal.SIGINT)
        assert holder.wait() == [0, 130], [client.text for client in clients]
    assert clients[1].over is not None
    assert clients[1].over.exit_code == 130
    assert clients[1].over.summary["samples"]["done"] == len(two.requests)
    assert max(sent(one, two).values()) == 1
    assert holder.holder.totals.done == 70
    check_records(tmp_path / "dst" / "p", ids_of(ROWS))


def test_complete_records_of_a_killed_run_are_adopted_by_who_holds_their_rows(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    rows = rows_of(40)
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = tmp_path / "dst" / "p"

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(delay_s=30.0)  # the parts are there, the answer is not

    with serving(movers[0].scratch, act=act) as one, holding(tmp_path, nodes=1) as holder:
        client = begin(holder, "a", one, [file])
        holder.wait_until(lambda: len(one.requests) == 4)
        client.process.kill()
        client.process.wait()
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.1))) as one,
        serving(movers[1].scratch, act=gate) as two,
        holding(tmp_path / "again") as holder,
    ):
        clients = begin_both(holder, gate, [one, two], [file])
        assert holder.wait() == [0, 0], [client.text for client in clients]
    found = summaries(clients)
    assert (found["done"], found["adopted"], holder.holder.totals.adopted) == (40, 4, 4)
    assert sum(sent(one, two).values()) == 36
    check_records(dataset, ids_of(rows))


def test_samples_whose_end_was_never_heard_of_are_found_in_the_ledgers(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    rows = rows_of(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    dataset = tmp_path / "dst" / "p"
    with (
        serving(movers[0].scratch, act=(gate := Slow(0.5))) as one,
        serving(movers[1].scratch, act=(quick := Slow(0.1))) as two,
        holding(tmp_path) as holder,
    ):
        holder.deaf.add("b")
        quick.open = gate.open
        clients = begin_both(holder, gate, [one, two], [file])
        holder.wait_until(lambda: dataset.exists() and len(Ledgers.of(dataset).kinds(Done)) >= 20)
        clients[1].process.kill()
        clients[1].process.wait()
        by_b = {line.sample_id for line in Ledgers.of(dataset).kinds(Done) if line.rid in two.rids}
        assert len(by_b) >= 10
        assert holder.wait()[0] == 0, clients[0].text
    by_ids = {tuple(row["input_ids"]): row["id"] for row in rows}
    assert not {by_ids[tuple(ids)] for _, ids in one.requests} & by_b
    found = summaries([clients[0]])
    assert (found["done_elsewhere"], found["done"]) == (len(by_b), 60 - len(by_b))
    assert f"{len(by_b)} done by another client meanwhile" in clients[0].text
    assert covered([clients[0]]) == list(range(60))
    check_records(dataset, ids_of(rows))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_rows_before_the_last_ones_are_found_again(movers: list[MoverProcess], tmp_path: Path, suffix: str) -> None:
    """One client has taken the last rows when it is given the first ones, which another one had and lost."""
    rows = rows_of(900, longest=6)
    file = prompts(tmp_path / "p.jsonl", rows)
    if suffix:
        (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(file.read_bytes()))
        file = tmp_path / "p.jsonl.gz"
    with (
        serving(movers[0].scratch, act=Slow(0.0)) as stuck,
        serving(movers[1].scratch) as two,
        holding(tmp_path) as holder,
    ):
        first = begin(holder, "a", stuck, [file])
        holder.wait_until(lambda: len(stuck.requests) == 4)
        second = begin(holder, "b", two, [file], "--concurrency", "32")
        holder.wait_until(lambda: len(two.requests) > 400)
        first.process.kill()
        assert holder.wait()[1] == 0, second.text
    starts = [start for start, _ in second.leases]
    assert starts.index(0) > 0
    assert set(sent(two)) == {tuple(row["input_ids"]) for row in rows}
    assert summaries([second])["done"] == 900


def test_answers_are_generated_on_leased_rows(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(40, longest=12)
    file = prompts(tmp_path / "p.jsonl", rows)
    go_on = threading.Event()

    def say(number: int, ids: list[int], sampling: dict[str, Any]) -> Said:
        go_on.wait(60)
        return fake_answer(ids, sampling)

    generate = ("--generate", "--temperature", "0.9", "--variants", "2", "--generate-concurrency", "4")
    with (
        serving(movers[0].scratch, say=say) as lame,
        serving(movers[1].scratch) as quick,
        holding(tmp_path) as holder,
    ):
        clients = [begin(holder, "lame", lame, [file], *generate)]
        holder.wait_until(lambda: len(lame.asked) >= 4)
        clients.append(begin(holder, "quick", quick, [file], *generate))
        # All but the requests in flight, which are of two rows or three.
        holder.wait_until(lambda: len(quick.asked) >= 74)
        go_on.set()
        assert holder.wait(120) == [0, 0], [client.text for client in clients]
    assert covered(clients) == list(range(40))
    found = summaries(clients)
    assert (found["done"], found["pending"]) == (80, 0)
    dataset = tmp_path / "dst" / "p"
    assert len({line.sample_id for line in Ledgers.of(dataset).kinds(Done)}) == 80
    assert len(Ledgers.of(dataset).kinds(Done)) == 80
    answers = [facts for path in DatasetPaths(dataset).responses.iterdir() for _, facts in iter_facts(path)]
    assert len(answers) == len({(facts.sample_id, facts.variant) for facts in answers}) == 80
    given = [message for message in clients[0].of(Shrunk) if isinstance(message, Shrunk) and message.ranges]
    assert given, "nothing was stolen"
