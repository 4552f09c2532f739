"""Slow answers, late parts and late records of attempts that were given up: each costs time, none a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain import MoverProcess
from client_runs import Ledgers, check_records, client, ids_of, prompts, rows_of
from fake_server import Act, serving
from hs_formats.ledger import Done, Failed
from hs_formats.names import Rid


@pytest.mark.slow
def test_many_requests_in_flight_wait_for_slow_answers(mover: MoverProcess, tmp_path: Path) -> None:
    """HTTP libraries give up after five seconds, for an answer as for a connection, if nobody tells them not to."""
    rows = rows_of(256, longest=30)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=7)) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "256", "--server-timeout", "60")
    assert ended.code == 0, ended.text
    assert len(server.requests) == 256, "none was sent twice"
    check_records(mover.dst / "p", ids_of(rows))


def test_parts_that_come_late_and_one_by_one_are_waited_for_in_silence(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": "long", "input_ids": list(range(1, 49))}]
    late = Act(parts_first=False, part_delay_s=0.3, chunk_delay_s=0.4)
    with serving(mover.scratch, act=lambda i, rid, t: late) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows))
    assert ended.code == 0, ended.text
    assert len(server.requests) == 1
    assert "waiting for" not in ended.text
    check_records(mover.dst / "p", ids_of(rows))


def test_a_late_record_of_an_attempt_that_was_given_up_counts_once(mover: MoverProcess, tmp_path: Path) -> None:
    """The first answer takes longer than the client waits, and its parts come after the second request was sent."""
    rows = rows_of(3, longest=30)

    def act(number: int, rid: str, ids: list[int]) -> Act:
        first = Rid.parse(rid).attempt == 0
        return Act(delay_s=3, parts_first=False, part_delay_s=0.2) if first else Act(delay_s=0.5)

    with serving(mover.scratch, act=act) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--request-timeout", "1", "--part-timeout", "8")
        assert ended.code == 0, ended.text
        again = client(server, tmp_path / "p.jsonl")
        assert "nothing to send" in again.text
    check_records(mover.dst / "p", ids_of(rows))
    ledgers = Ledgers.of(mover.dst / "p")
    assert len(ledgers.kinds(Done)) == 3
    assert [line for line in ledgers.kinds(Failed) if line.kind == "lost"] == [], (
        "a lost attempt is not a failed sample"
    )


def test_a_web_page_is_named_and_not_quoted(mover: MoverProcess, tmp_path: Path) -> None:
    page = "<!DOCTYPE html><html><body><h1>502 Bad Gateway</h1></body></html>"
    with serving(mover.scratch, act=lambda i, rid, t: Act(status=404, body=page, raw=True)) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows_of(3, longest=30)))
    assert ended.code == 1, ended.text
    assert "the server refuses it: HTTP 404: a web page, so this is no SGLang server" in ended.text
    assert "<h1>" not in ended.text


def test_the_successor_of_httpx_does_the_same(mover: MoverProcess, tmp_path: Path) -> None:
    pytest.importorskip("httpx2")
    rows = rows_of(30, longest=30)
    flaky = Act(vanish=True)
    busy = Act(status=503, body={"object": "error", "message": "The request queue is full."})
    with serving(mover.scratch, act=lambda i, rid, t: {3: flaky, 9: busy}.get(i, Act())) as server:
        file = prompts(tmp_path / "p.jsonl", rows)
        ended = client(server, file, "--concurrency", "4", environment={"HS_HTTP": "httpx2"})
        assert ended.code == 0, ended.text
        wrong = client(server, file, environment={"HS_HTTP": "curl"})
        assert (wrong.code, "HS_HTTP=curl: give httpx or httpx2" in wrong.text) == (2, True), wrong.text
    check_records(mover.dst / "p", ids_of(rows))
