"""`hs-client run` with a real mover against a server that misbehaves: what each fault comes to."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chain import MoverProcess, running_mover, wait_until
from client_runs import Ledgers, Rows, argv, check_records, client, ids_of, prompts, rows_of, start
from fake_server import Act, FakeServer, serving
from hs_formats.control import ControlFolder, now_s
from hs_formats.ledger import Done, Failed, Intent, Rejected
from hs_formats.names import Rid
from launching import free_port


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


@pytest.fixture
def mover(scratch: Path, tmp_path: Path) -> Iterator[MoverProcess]:
    scratch.mkdir(mode=0o700)
    with running_mover(scratch, tmp_path / "dst", tmp_path) as running:
        yield running


def _silent(scratch: Path) -> bool:
    state = ControlFolder(scratch).read_mover()
    return state is not None and not state.alive(now_s())


def of_row(rid: str) -> int:
    return Rid.parse(rid).row


def test_late_parts_chunks_and_prefixes_come_out_right(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(60)
    with serving(
        mover.scratch, act=lambda i, r, t: Act(part_delay_s=0.3 * (i % 3 == 0), parts_first=i % 2 == 0)
    ) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "8")
        assert ended.code == 0, ended.text
        assert "60 done, 0 failed" in ended.text
        assert len(server.requests) == 60
        check_records(mover.dst / "p", ids_of(rows))
        again = client(server, tmp_path / "p.jsonl")
        assert again.code == 0
        assert "60 done, 0 to send" in again.text
        assert len(server.requests) == 60
    assert mover.stop() == 0
    assert client(server, tmp_path / "p.jsonl").code == 0, "all done: neither server nor mover is needed"


def test_each_fault_fails_its_own_row(mover: MoverProcess, tmp_path: Path) -> None:
    faults: dict[int, Act] = {
        1: Act(parts=False),
        2: Act(rows_from=5),
        3: Act(cached_tokens=4, rows_from=4),
        4: Act(finish_type="abort", parts=False),
        5: Act(prompt_tokens=3),
        6: Act(failure="ring full"),
        7: Act(ids=[9] * 50),
        8: Act(status=400, body={"error": {"message": "too long for me"}}),
        9: Act(status=400, body={"error": "unknown key"}),
        10: Act(status=400, body={"object": "error", "message": "bad schema", "code": 400}),
    }
    rows: Rows = [{"id": f"s{i}", "input_ids": [1 + i, *range(2, 20)]} for i in range(14)]
    with serving(mover.scratch, act=lambda i, rid, t: faults.get(of_row(rid), Act())) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--part-timeout", "1", "--max-retries", "1")
    assert ended.code == 1, ended.text
    expected = {
        1: "hook silent: the server answered, but no part",
        2: "hook silent: rows [0, 5) of 19 never appeared",
        3: "4 tokens came from the prefix cache",
        4: "aborted",
        5: "counted 3 prompt tokens where 19 were sent",
        6: "ring full",
        7: "holds other token ids",
        8: "HTTP 400: too long for me",
        9: "HTTP 400: unknown key",
        10: "HTTP 400: bad schema",
    }
    for row, reason in expected.items():
        line = next(line for line in ended.text.splitlines() if f"p.jsonl:{row + 1}: failed" in line)
        assert reason in line
    good = {f"s{i}": ids for i, (_, ids) in enumerate(ids_of(rows).items()) if i not in faults}
    check_records(mover.dst / "p", good)
    tries = [of_row(rid) for rid in server.rids]
    assert [tries.count(row) for row in range(14)] == [1] + [2] * 7 + [1] * 6
    with serving(mover.scratch) as server:  # failed samples are retried by the next run
        assert client(server, tmp_path / "p.jsonl").code == 0
        assert len(server.requests) == 10
    check_records(mover.dst / "p", ids_of(rows))


def test_a_second_attempt_mends_a_passing_fault(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(12)
    faults = [
        Act(parts=False),
        Act(cached_tokens=1),
        Act(failure="scratch is full"),
        Act(finish_type="abort", parts=False),
    ]

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return faults[of_row(rid) % 4] if Rid.parse(rid).attempt == 0 else Act()

    with serving(mover.scratch, act=act) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--part-timeout", "1")
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", ids_of(rows))
    assert len(Ledgers.of(mover.dst / "p").kinds(Failed)) == 12


def test_a_bad_spell_is_survived_and_no_rid_is_used_twice(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(80)
    began: list[float] = []
    busy = Act(status=503, body={"object": "error", "message": "The request queue is full.", "code": 503})

    def act(number: int, rid: str, ids: list[int]) -> Act:
        began.append(time.monotonic())
        return busy if 1 < time.monotonic() - began[0] < 6 else Act(delay_s=0.2)

    with serving(mover.scratch, act=act) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "8")
    assert ended.code == 0, ended.text
    assert "waiting for the server" in ended.text
    check_records(mover.dst / "p", ids_of(rows))
    assert len(server.requests) < 80 + 8 * 8


def test_a_connection_that_breaks_after_the_capture_costs_no_second_record(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(10)
    with serving(mover.scratch, act=lambda i, rid, t: Act(vanish=i % 3 == 0)) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "4")
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", ids_of(rows))
    adopted = [line for line in Ledgers.of(mover.dst / "p").kinds(Done) if line.adopted]
    assert adopted, "an answer was lost, its record was not"


def test_a_dead_server_ends_the_run_and_the_next_one_goes_on(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(40)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.05)) as server:
        process = start(server, file, "--concurrency", "4", "--server-timeout", "3", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="twelve requests")
    assert process.wait(30) == 4
    text = (tmp_path / "log").read_text()
    assert "has been lost for" in text
    assert "samples are pending" in text
    first = len(server.requests)
    with serving(mover.scratch, port=server.port) as server:
        ended = client(server, file)
    assert ended.code == 0, ended.text
    check_records(mover.dst / "p", ids_of(rows))
    assert first + len(server.requests) <= 40 + 4


def test_a_server_that_comes_back_in_time_is_used_again(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(40)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.05)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "4", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="twelve requests")
    with serving(mover.scratch, port=server.port) as second:
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    assert not set(server.rids) & set(second.rids)
    check_records(mover.dst / "p", ids_of(rows))


def test_a_server_that_comes_back_with_other_settings_ends_the_run(mover: MoverProcess, tmp_path: Path) -> None:
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows_of(60)), "--concurrency", "2", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 3, timeout_s=30, what="three requests")
    with serving(mover.scratch, port=server.port, boundaries=(1, 3), config_hash="other"):
        assert process.wait(60) == 3
    assert "boundaries: [1, 2] and [1, 3]" in (tmp_path / "log").read_text()


def test_a_server_that_answers_health_but_no_request_is_given_up(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(30)
    hang = Act(delay_s=30, parts=False)
    with serving(mover.scratch, act=lambda i, rid, t: hang if i >= 20 else Act()) as server:
        ended = client(
            server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "4", "--server-timeout", "3", timeout_s=40
        )
    assert ended.code == 4, ended.text
    assert "neither an answer nor a part file" in ended.text
    assert "20 done" in ended.text


@pytest.mark.parametrize("concurrency", ["4", "16"])
def test_killed_clients_lose_and_double_nothing(mover: MoverProcess, tmp_path: Path, concurrency: str) -> None:
    rows = rows_of(90)
    file = prompts(tmp_path / "p.jsonl", rows)
    kills = 3
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.1, part_delay_s=0.1 * (i % 2))) as server:
        for kill in range(kills):
            before = len(server.requests)
            process = start(server, file, "--concurrency", concurrency, log=tmp_path / "log")
            wait_until(
                lambda before=before, kill=kill: len(server.requests) > before + 9 + 3 * kill,
                timeout_s=30,
                what="requests",
                every_s=0.02,
            )
            process.kill()
            process.wait()
        ended = client(server, file, "--concurrency", concurrency)
        assert ended.code == 0, ended.text + (tmp_path / "log").read_text()
        assert len(server.requests) <= 90 + kills * int(concurrency)
    check_records(mover.dst / "p", ids_of(rows))


def test_ctrl_c_ends_cleanly_and_can_be_resumed(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.3)) as server:
        process = start(server, file, "--concurrency", "4", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 9, timeout_s=30, what="nine requests")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130, (tmp_path / "log").read_text()
        ledgers = Ledgers.of(mover.dst / "p")
        assert len(ledgers.kinds(Done)) == len(ledgers.kinds(Intent)) == len(server.requests)
        assert client(server, file).code == 0
        assert len(server.requests) == 60
    text = (tmp_path / "log").read_text()
    assert "Traceback" not in text
    assert "repeat the command to go on" in text
    check_records(mover.dst / "p", ids_of(rows))


def test_a_second_ctrl_c_leaves_at_once(mover: MoverProcess, tmp_path: Path) -> None:
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=20)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows_of(9)), log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 5, timeout_s=30, what="five requests")
        process.send_signal(signal.SIGINT)
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_preflight_says_what_is_missing(scratch: Path, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(3))
    nobody = FakeServer(scratch, port=free_port())
    ended = client(nobody, file)
    assert (ended.code, "no server answers at" in ended.text) == (4, True), ended.text
    with serving(scratch, capture=False) as server:
        ended = client(server, file)
        assert (ended.code, "no capture of a server on port" in ended.text) == (3, True), ended.text
    with serving(scratch) as server:
        ended = client(server, file)
        assert (ended.code, "start `hs-mover --src" in ended.text) == (5, True), ended.text
        with running_mover(scratch, tmp_path / "dst", tmp_path) as mover:
            assert client(server, file).code == 0
            mover.kill()
            wait_until(lambda: _silent(scratch), timeout_s=10, what="a stale heartbeat")
            ended = client(server, prompts(tmp_path / "q.jsonl", rows_of(3)))
            assert (ended.code, "no mover works on" in ended.text) == (5, True), ended.text
    with serving(scratch, boundaries=(1, 3)) as server, running_mover(scratch, tmp_path / "dst", tmp_path):
        ended = client(server, prompts(tmp_path / "p.jsonl", rows_of(4)))
        assert (ended.code, "boundaries: the dataset has [1, 2]" in ended.text) == (3, True), ended.text
        for wrong in (["--dataset", "a/b"], ["--shard", "3/3"], ["--server", "nonsense"], ["--concurrency", "0"]):
            assert client(server, file, *wrong).code == 2
        assert client(server, tmp_path / "missing.jsonl").code == 2


def test_a_prompts_file_with_everything_wrong_in_it(mover: MoverProcess, tmp_path: Path) -> None:
    good: Rows = [{"id": "first", "input_ids": [1, 2, 3]}, {"id": "last", "input_ids": [4, 5]}]
    lines = [
        b'\xef\xbb\xbf{"id": "first", "input_ids": [1, 2, 3]}\r\n',
        b"\r\n",
        b'{"input_ids": [1, \n',
        b'{"text": "\xe6"}\n',
        b'{"input_ids": [NaN]}\n',
        b'{"text": ""}\n',
        b'{"id": "first", "input_ids": [9]}\n',
        b'{"id": "long", "input_ids": [' + b"7," * 63 + b"7]}\n",
        b'{"input_ids": [' + b"1," * 25_000_000 + b"1]}\n",
        '{"id": "u\u2028v", "input_ids": [8]}\n'.encode(),
        b'{"id": "last", "input_ids": [4, 5]}',
    ]
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"".join(lines))
    with serving(mover.scratch, context_length=64) as server:
        ended = client(server, file)
        assert ended.code == 1, ended.text
        reasons = {
            3: "not JSON",
            4: "not UTF-8",
            5: "NaN",
            6: "text is empty",
            7: "p.jsonl:1; the first row",
            8: "too long",
            9: "50,000,0",
        }
        for number, reason in reasons.items():
            assert any(f"p.jsonl:{number}: rejected: " in line and reason in line for line in ended.text.splitlines())
        check_records(mover.dst / "p", {**ids_of(good), "u\u2028v": [8]})
        assert len(Ledgers.of(mover.dst / "p").kinds(Rejected)) == 7
        again = client(server, file)
        assert again.code == 1
        assert "too long" in again.text
        assert len(server.requests) == 3


def test_the_context_limit_is_kept_to_the_token(mover: MoverProcess, tmp_path: Path) -> None:
    rows: Rows = [{"id": f"s{n}", "input_ids": [1 + n % 50] * n} for n in (56, 57, 58, 63, 64, 65)]
    with serving(mover.scratch, context_length=64) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows))
    assert ended.code == 1
    assert ended.text.count(": rejected: too long") == 2
    check_records(mover.dst / "p", ids_of(rows[:4]))


def test_identical_rows_are_stored_once_and_shards_share_the_rest(mover: MoverProcess, tmp_path: Path) -> None:
    rows: Rows = [{"input_ids": [1, 2, 3 + i % 5]} for i in range(20)]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch) as server:
        assert client(server, file, "--shard", "0/2").code == 0
        assert client(server, file, "--shard", "1/2", "--limit", "1").code == 0
        ended = client(server, file, "--shard", "1/2")
        assert ended.code == 0
        assert "15 identical" in ended.text
        assert len(server.requests) == 5


def test_one_of_many_without_a_record_ends_with_its_name(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(100)
    silent: Callable[[int, str, list[int]], Act] = lambda i, rid, t: Act(parts=of_row(rid) != 42)  # noqa: E731
    with serving(mover.scratch, act=silent) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--part-timeout", "1", "--max-retries", "0")
    assert ended.code == 1
    assert "99 done, 1 failed" in ended.text
    assert "p.jsonl:43: failed (hook silent)" in ended.text


def test_a_dead_mover_ends_the_run_with_the_sources_kept(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(60)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.5)) as server:
        process = start(server, file, "--concurrency", "4", "--mover-timeout", "8", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="twelve requests")
        mover.kill()
        assert process.wait(40) == 5, (tmp_path / "log").read_text()
        text = (tmp_path / "log").read_text()
        assert "waiting for the mover" in text
        assert "the mover has been silent" in text
        sent = len(server.requests)
        with running_mover(mover.scratch, mover.dst, tmp_path):
            ended = client(server, file)
        assert ended.code == 0, ended.text
        assert len(server.requests) <= 60 + 4
        assert sent < 60
    check_records(mover.dst / "p", ids_of(rows))


def test_a_stopped_mover_makes_the_client_wait(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(60)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.5)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "4", log=tmp_path / "log")
        wait_until(lambda: len(server.requests) > 12, timeout_s=30, what="twelve requests")
        mover.process.send_signal(signal.SIGSTOP)
        time.sleep(9)
        sent = len(server.requests)
        assert sent < 60
        time.sleep(1)
        assert len(server.requests) == sent
        mover.process.send_signal(signal.SIGCONT)
        assert process.wait(40) == 0, (tmp_path / "log").read_text()
    check_records(mover.dst / "p", ids_of(rows))


def test_prompts_longer_than_the_server_takes_are_not_sent(mover: MoverProcess, tmp_path: Path) -> None:
    """However many there are: they say nothing about the server, and the next server may take them."""
    rows: Rows = [{"id": f"s{i}", "input_ids": [5 + i % 100] * (20 if i < 90 else 10)} for i in range(100)]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, longest_prompt=10) as server:
        ended = client(server, file)
        assert ended.code == 1, ended.text
        assert "10 done, 90 failed, 0 rejected" in ended.text
        assert "p.jsonl:1: failed (too long): 20 tokens, and this server takes 10 at most" in ended.text
        assert len(server.requests) == 10
        server.longest_prompt = 20
        assert client(server, file).code == 0
    check_records(mover.dst / "p", ids_of(rows))


def test_a_mover_that_stops_after_everything_was_sent_is_named(mover: MoverProcess, tmp_path: Path) -> None:
    """Nothing asks for room any more, so only the records that wait to be stored can say what the run waits for."""
    rows = rows_of(12)
    log = tmp_path / "log"
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=1.5, parts_first=False)) as server:
        process = start(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "16", log=log)
        wait_until(lambda: len(server.requests) == 12, timeout_s=30, what="all requests")
        mover.process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: "0 in flight, 12 to be stored" in log.read_text() and "; waiting for the mover" in log.read_text(),
            timeout_s=30,
            what="a line that says what is waited for",
        )
        time.sleep(2)
        mover.process.send_signal(signal.SIGCONT)
        assert process.wait(40) == 0, log.read_text()
    announced = [line for line in log.read_text().splitlines() if line.startswith("waiting for")]
    assert len(announced) == 1, announced
    assert announced[0].startswith("waiting for the mover: silent for")
    assert "for the mover" in next(line for line in log.read_text().splitlines() if line.startswith("waited"))
    check_records(mover.dst / "p", ids_of(rows))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Act(parts=False), "hook silent"),
        (Act(status=400, body={"error": {"message": "not a generation model"}}), "not a generation model"),
    ],
)
def test_when_nothing_works_the_rows_stay_pending(mover: MoverProcess, tmp_path: Path, fault: Act, reason: str) -> None:
    rows = rows_of(200)
    with serving(mover.scratch, act=lambda i, rid, t: fault) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--part-timeout", "1", "--concurrency", "16")
        assert ended.code == 4, ended.text
        assert "requests all failed" in ended.text
        assert reason in ended.text
        server.act = lambda i, rid, t: Act()
        assert client(server, tmp_path / "p.jsonl").code == 0
    check_records(mover.dst / "p", ids_of(rows))


def test_a_terminal_gets_a_bar(mover: MoverProcess, tmp_path: Path) -> None:
    rows = rows_of(30)
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda i, rid, t: Act(delay_s=0.3)) as server:
        done = subprocess.run(
            ["script", "-qec", shlex.join(argv(server, [file], "--concurrency", "8")), "/dev/null"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    assert b"\r" in done.stdout
    assert b"| 30/30 samples, " in done.stdout, done.stdout.decode()
    assert b"in flight" in done.stdout
    assert b"30 done" in done.stdout
