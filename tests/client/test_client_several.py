"""One run, several servers, each with a scratch and a mover of its own, and one dataset."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chain import MoverProcess, running_mover, wait_until
from client_runs import Ledgers, check_records, client, ids_of, prompts, rows_of, start
from fake_server import Act, serving
from hs_formats.ledger import Done
from launching import free_port


def test_two_servers_share_the_rows_and_one_dataset_holds_them(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(80)
    quick_scratch, slow_scratch = movers[0].scratch, movers[1].scratch

    def slow(number: int, rid: str, ids: list[int]) -> Act:
        """Answers once the other one has had five requests for each of its own, or nothing is left to send."""

        def due() -> bool:
            return len(quick.requests) >= 5 * (number + 1) or len(quick.requests) + len(other.requests) == 80

        wait_until(due, timeout_s=60, what="requests to the quick one")
        return Act()

    with serving(quick_scratch) as quick, serving(slow_scratch, act=slow) as other:
        file = prompts(tmp_path / "p.jsonl", rows)
        also = f"{other.url}={other.scratch}"
        ended = client(quick, file, "--server", also, "--concurrency", "4")
        assert ended.code == 0, ended.text
        assert len(quick.requests) + len(other.requests) == 80
        assert len(other.requests) >= 8
        assert len(quick.requests) > 2 * len(other.requests), "the quick one has fewer outstanding tokens"
        assert "nothing to send" in client(quick, file, "--server", also).text
    check_records(tmp_path / "dst" / "p", ids_of(rows))


@pytest.mark.parametrize("how", ["killed", "hangs"])
def test_the_rows_of_a_lost_server_go_to_the_other_one(movers: list[MoverProcess], tmp_path: Path, how: str) -> None:
    rows = rows_of(60)
    hang = Act(delay_s=60, parts=False)
    with serving(movers[0].scratch, act=lambda i, rid, t: Act(delay_s=0.1)) as good:
        with serving(
            movers[1].scratch, act=lambda i, rid, t: hang if how == "hangs" and i >= 5 else Act(delay_s=0.1)
        ) as bad:
            process = start(
                good,
                prompts(tmp_path / "p.jsonl", rows),
                "--server",
                f"{bad.url}={bad.scratch}",
                *("--concurrency", "3", "--server-timeout", "2"),
                log=tmp_path / "log",
            )
            wait_until(lambda: len(bad.requests) > 7, timeout_s=30, what="requests to both")
            if how == "hangs":
                assert process.wait(40) == 0, (tmp_path / "log").read_text()
        assert process.wait(40) == 0, (tmp_path / "log").read_text()
    text = (tmp_path / "log").read_text()
    if how == "hangs":
        assert f"warning: {bad.url} is given up, its rows go to the other servers" in text
    assert "60 done" in text
    assert "0 failed" in text
    check_records(tmp_path / "dst" / "p", ids_of(rows))


def test_a_server_that_is_away_for_a_while_is_used_again(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(120)
    with serving(movers[0].scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as good:
        with serving(movers[1].scratch, act=lambda i, rid, t: Act(delay_s=0.2)) as gone:
            file = prompts(tmp_path / "p.jsonl", rows)
            also = ("--server", f"{gone.url}={gone.scratch}", "--concurrency", "2")
            process = start(good, file, *also, log=tmp_path / "log")
            wait_until(lambda: len(gone.requests) > 4, timeout_s=30, what="requests to both")
        before = len(good.requests)
        wait_until(lambda: len(good.requests) > before + 6, timeout_s=30, what="the other one goes on")
        with serving(movers[1].scratch, port=gone.port, act=lambda i, rid, t: Act(delay_s=0.2)) as again:
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
            assert len(again.requests) > 2
    check_records(tmp_path / "dst" / "p", ids_of(rows))
    assert len(Ledgers.of(tmp_path / "dst" / "p").kinds(Done)) == 120


def test_what_does_not_fit_together_is_refused_and_who_is_absent_left_out(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    file = prompts(tmp_path / "p.jsonl", rows_of(6))
    (tmp_path / "three").mkdir(mode=0o700)
    (tmp_path / "log-three").mkdir()
    with serving(movers[0].scratch) as good:
        with serving(movers[1].scratch, boundaries=(1, 3)) as other:
            ended = client(good, file, "--server", f"{other.url}={other.scratch}")
            assert (ended.code, "capture differently: boundaries: [1, 2] and [1, 3]" in ended.text) == (3, True), (
                ended.text
            )
        elsewhere = running_mover(tmp_path / "three", tmp_path / "other-dst", tmp_path / "log-three")
        with elsewhere as mover, serving(mover.scratch) as other:
            ended = client(good, file, "--server", f"{other.url}={other.scratch}")
            assert (ended.code, "one dataset needs one destination" in ended.text) == (3, True), ended.text
        ended = client(good, file, "--server", good.url)
        assert (ended.code, "is given twice" in ended.text) == (2, True), ended.text
        absent = f"http://127.0.0.1:{free_port()}={movers[1].scratch}"
        ended = client(good, file, "--server", absent)
        assert ended.code == 0, ended.text
        assert "warning: a server is left out: no server answers at" in ended.text


def test_a_server_that_wants_a_key_says_so(movers: list[MoverProcess], tmp_path: Path) -> None:
    rows = rows_of(20)
    began = time.monotonic()

    def act(number: int, rid: str, ids: list[int]) -> Act:
        return Act(status=401, body={"error": "Unauthorized"}) if number >= 5 else Act()

    with serving(movers[0].scratch, act=act) as server:
        ended = client(server, prompts(tmp_path / "p.jsonl", rows), "--concurrency", "2")
        assert ended.code == 3, ended.text
        assert "wants another API key (HTTP 401: Unauthorized): put the one that it was started with into" in ended.text
        assert "HS_API_KEY" in ended.text
        assert time.monotonic() - began < 30
    with serving(movers[0].scratch) as server:
        assert client(server, tmp_path / "p.jsonl").code == 0
    check_records(tmp_path / "dst" / "p", ids_of(rows))
