"""When requests are sent, paused, sent again and given up: queue, gate, breaker, limiter, without a server."""

from __future__ import annotations

from pathlib import Path

import anyio
import numpy as np
import pytest
from hypothesis import given, strategies as st

from hs_client._http import RequestError
from hs_client.attempt import Verdict
from hs_client.breaker import Breaker
from hs_client.endings import retry_pause_s
from hs_client.errors import ServerGone
from hs_client.gate import ServerGate
from hs_client.limiter import Limiter, Party
from hs_client.prepare import Prepared
from hs_client.progress import Rates, Snapshot, progress_text
from hs_client.settings import Endpoint, parse_servers
from hs_client.summary import summary, summary_lines
from hs_client.tally import SHOWN_PROBLEMS, Tally, percentile
from hs_client.work import Item, WorkQueue
from hs_formats.errors import UsageError

pytestmark = pytest.mark.anyio


def sample(row: int) -> Prepared:
    return Prepared(f"s{row}", f"p.jsonl:{row}", np.arange(3, dtype=np.int32), [(1, 3)], "")


async def test_what_is_put_off_comes_last_and_what_pauses_comes_when_it_is_due() -> None:
    queue = WorkQueue()
    large, retried, plain = (Item(sample(row), row) for row in range(3))
    await queue.put([large, retried, plain])
    queue.end_input()
    assert await queue.get() is large
    queue.put_off(large)
    assert await queue.get() is retried
    queue.again(retried, pause_s=0.05)
    assert await queue.get() is plain
    with anyio.fail_after(5):
        assert await queue.get() is retried
    with anyio.move_on_after(0.05) as scope:
        await queue.get()
    assert scope.cancelled_caught, "two samples are not settled yet: the large one has to wait"
    for item in (plain, retried):
        queue.settle(item)
    with anyio.fail_after(5):
        assert await queue.get() is large
    assert large.put_off
    queue.settle(large)
    assert await queue.get() is None
    assert queue.finished


@given(st.lists(st.sampled_from(["settle", "again", "pause", "put off"]), min_size=1, max_size=30))
async def test_every_sample_is_handed_out_until_it_is_settled(fates: list[str]) -> None:
    queue = WorkQueue(capacity=100)
    items = [Item(sample(row), row) for row in range(len(fates))]
    await queue.put(items)
    queue.end_input()
    handed: dict[int, int] = dict.fromkeys(range(len(fates)), 0)
    with anyio.fail_after(20):
        while (item := await queue.get()) is not None:
            handed[item.row] += 1
            fate = fates[item.row] if handed[item.row] == 1 else "settle"
            match fate:
                case "settle":
                    queue.settle(item)
                case "again":
                    queue.again(item)
                case "pause":
                    queue.again(item, pause_s=0.001)
                case _:
                    queue.put_off(item)
    assert all(count == (1 if fates[row] == "settle" else 2) for row, count in handed.items())
    assert queue.unsettled == 0


def test_pauses_double_and_differ() -> None:
    for tries in range(1, 12):
        longest = min(30.0, 0.5 * 2**tries)
        pauses = [retry_pause_s(tries) for _ in range(20)]
        assert all(longest / 2 <= pause <= longest for pause in pauses)
        assert len(set(pauses)) > 1


async def test_after_a_pause_one_request_goes_first() -> None:
    opened: list[bool] = []
    asked: list[bool] = []
    first = anyio.Event()

    def note() -> None:
        opened.append(gate.is_open)
        first.set()

    async def probe() -> None:
        asked.append(True)
        if len(asked) == 1:
            raise RequestError("still away")

    gate = ServerGate("u", timeout_s=60, probe=probe, left=lambda: 3, opened=note)
    gate._backoff_s = 0.01

    def now() -> tuple[bool, bool, bool]:
        return gate.is_open, gate.probing, gate.paused

    async with anyio.create_task_group() as group:
        group.start_soon(gate.serve)
        gate.enter()
        assert now() == (True, False, False)
        gate.failed("HTTP 503")
        gate.failed("another one of the same spell")
        assert (now(), gate.reason) == ((False, True, True), "HTTP 503")
        gate.ok()  # an answer from before
        assert now() == (False, True, True)
        with anyio.fail_after(5):
            await first.wait()
        assert (len(asked), now(), opened) == (2, (True, False, True), [True])
        gate.enter()
        assert now() == (False, False, True), "one at a time"
        gate.leave()
        assert now() == (True, False, True), "it said nothing: another one may try"
        gate.enter()
        gate.ok()
        assert (now(), gate.reason) == ((True, False, False), "")
        gate.enter()
        assert now() == (True, False, False)
        group.cancel_scope.cancel()


async def test_a_server_that_stays_away_is_given_up_by_time() -> None:
    async def probe() -> None:
        raise RequestError("connection refused")

    gate = ServerGate("http://h:1", timeout_s=0.05, probe=probe, left=lambda: 3)
    gate._backoff_s = 0.02
    gate.failed("connection refused")
    with (
        anyio.fail_after(5),
        pytest.raises(ServerGone, match=r"http://h:1 has been lost .*\(connection refused\); 3 sam"),
    ):
        await gate.serve()


def test_a_short_run_of_failures_trips_before_the_first_success_and_a_long_one_after() -> None:
    breaker = Breaker()
    said = [breaker.failed() for _ in range(64)]
    assert (said[-2], said[-1]) == ("", "the last 64 requests all failed")
    breaker = Breaker()
    breaker.succeeded()
    said = [breaker.failed() for _ in range(512)]
    assert (said[-2], said[-1]) == ("", "the last 512 requests all failed")


def test_a_success_now_and_then_does_not_hide_that_nearly_all_fail() -> None:
    breaker = Breaker()
    sent, said = 0, ""
    while not said:
        sent += 1
        if sent % 30 == 0:
            breaker.succeeded()
        else:
            said = breaker.failed()
    assert said.endswith("of the last 1024 requests failed")
    assert sent < 1100


@given(st.lists(st.booleans(), max_size=400), st.integers(0, 20))
def test_a_mixed_run_never_trips(outcomes: list[bool], first: int) -> None:
    breaker = Breaker()
    for number, failed in enumerate(outcomes):
        if not failed or number % 40 == first:
            breaker.succeeded()
        else:
            assert breaker.failed() == ""


def test_the_party_that_was_waited_for_most_of_late_limits() -> None:
    limiter = Limiter(0.0)
    assert limiter.limiting(0.0) == ""
    timeline: list[tuple[float, Party]] = [(0.0, "tokeniser"), (10.0, "server"), (12.0, ""), (12.5, "scratch")]
    for at_s, party in timeline:
        limiter.wait_for(party, at_s)
    assert limiter.limiting(12.5) == "tokeniser"
    assert limiter.limiting(19.0) == "scratch"
    assert limiter.limiting(40.0) == "scratch"
    shares = limiter.shares(13.5)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["server"] == pytest.approx(2 / 13.5)
    limiter.wait_for("", 40.0)
    assert limiter.limiting(100.0) == ""


def test_rates_are_of_late_and_the_end_is_told_by_them() -> None:
    rates = Rates()
    assert (rates.tokens_per_s, rates.left_s(5)) == (0.0, None)
    for second in range(200):
        rates.note(float(second), samples=min(second, 100) * 10, tokens=min(second, 100) * 1000)
        if second == 50:
            assert rates.tokens_per_s == 1000
            assert rates.left_s(50) == 5.0
    assert (rates.tokens_per_s, rates.left_s(5)) == (0.0, None)


def test_the_line_says_everything_that_there_is_to_say() -> None:
    tally = Tally(total=100, done=30, failed=2, rejected=1)
    tally.latencies_s.extend([0.1] * 94 + [2.0] * 6)
    rates = Rates()
    rates.note(0.0, samples=0, tokens=0)
    rates.note(10.0, samples=33, tokens=90_000)
    now = Snapshot(
        in_flight=8,
        to_store=3,
        waiting="room in scratch",
        limiting="mover",
        used_bytes=400,
        limit_bytes=1000,
        in_bytes_per_s=1.5e9,
        out_bytes_per_s=1e9,
    )
    assert progress_text(tally, now, rates) == (
        "33/100 samples, 2 failed, 1 rejected, 9,000 tokens/s, 20.3 s left, limited by the mover, 8 in flight,"
        " 3 to be stored, 1.50 GB/s in, 1.00 GB/s out, scratch 40% of 1.00 kB, answers p50 0.10 s, p95 2.00 s; waiting"
        " for room in scratch"
    )


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0, 1))
def test_a_percentile_is_one_of_the_values(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6


def test_the_table_counts_what_ended_alike() -> None:
    failed: list[str] = []
    tally = Tally(total=40, on_failed=lambda each: failed.append(each.sample_id))
    for row in range(25):
        tally.reject(
            f"p.jsonl:{row}", f"too long: {row + 90} tokens, and the server's context of 64 needs one to spare"
        )
    for row in range(5):
        tally.fail(sample(row), Verdict("hook silent", f"rows [{row}, 9) of 9 never appeared"))
    tally.fail(sample(9), Verdict("refused", "the server refuses it: no"))
    lines = summary_lines(tally, spent_s=1.0, pending=9, ledger=True)
    assert lines[0] == "samples    0 done, 6 failed, 25 rejected, 0 done earlier, 9 pending"
    assert lines[2].startswith("rejected        25, first p.jsonl:0: too long: 90 tokens")
    assert lines[3].startswith("failed           5 (hook silent), first p.jsonl:0: rows [0, 9) of 9")
    assert lines[4].startswith("failed           1 (refused)")
    assert lines[-1] == f"  … and {31 - SHOWN_PROBLEMS} more, in the ledger"
    unsent = summary_lines(tally, spent_s=1.0, pending=9, ledger=False)
    assert unsent[-1] == f"  … and {31 - SHOWN_PROBLEMS} more; nothing was sent, so no ledger names them"
    assert failed == ["s0", "s1", "s2", "s3", "s4", "s9"]
    told = summary(tally, spent_s=1.0, pending=9, exit_code=1, run="r")
    assert told["samples"]["failed"] == 6
    assert [(each["fate"], each["count"]) for each in told["reasons"]] == [
        ("rejected", 25),
        ("failed", 5),
        ("failed", 1),
    ]
    assert list(told)[:2] == ["run", "exit_code"]


def test_the_table_of_reasons_stays_short() -> None:
    tally = Tally(total=1000)
    for row in range(1000):
        tally.reject(f"p.jsonl:{row}", "odd" + "".join(chr(97 + int(digit)) for digit in str(row)))
    assert len(tally.reasons) == 101
    assert sum(reason.count for reason in tally.reasons.values()) == 1000


def test_servers_bring_their_scratch() -> None:

    common = Path("/dev/shm/common")
    assert parse_servers(["http://a:1/", "http://b:2=/dev/shm/b"], common) == (
        Endpoint("http://a:1", common),
        Endpoint("http://b:2", Path("/dev/shm/b")),
    )
    for wrong in (["http://a:1", "http://a:1/=x"], ["a:1"], ["http://"], ["http://a:99999=/x"]):
        with pytest.raises(UsageError, match="--server"):
            parse_servers(wrong, common)
