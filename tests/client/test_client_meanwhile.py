"""Two clients that work on one dataset at the same time, with the same ids: equal rows are sent once where that can be
known, of different ones only one counts, and that is said."""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from chain import MoverProcess, command, wait_until
from client_runs import Ledgers, client, prompts, start
from fake_server import Act, serving
from hs_client.meanwhile import Conflict, Meanwhile
from hs_formats.dataset import DatasetPaths
from hs_formats.jsonl import AppendLog
from hs_formats.ledger import Done, Intent, LedgerLine, Rejected

DATASET = ("--dataset", "both")


def rows_of(count: int, shift: int) -> list[dict[str, Any]]:
    return [{"id": f"s{i}", "input_ids": [shift + i + j for j in range(1, 6)]} for i in range(count)]


def both(movers: list[MoverProcess], tmp_path: Path, first: Sequence[Any], second: Sequence[Any]) -> tuple[int, str]:
    """Run `second` with its first request held until a run of `first` has ended, and what that has done is known."""
    held, go_on = threading.Event(), threading.Event()

    def act(number: int, rid: str, ids: list[int]) -> Act:
        if not number:
            held.set()
            go_on.wait(60)
        return Act()

    with serving(movers[0].scratch) as server, serving(movers[1].scratch, act=act) as slow:
        slow_client = start(slow, prompts(tmp_path / "b.jsonl", second), *DATASET, "--concurrency", "1")
        assert held.wait(60)
        ended = client(server, prompts(tmp_path / "a.jsonl", first), *DATASET)
        assert ended.code == 0, ended.text
        for _ in range(3):  # the ledgers are looked at with every heartbeat
            before = beat(slow.scratch)
            wait_until(functools.partial(lambda then: beat(slow.scratch) != then, before), timeout_s=30, what="a beat")
        go_on.set()
        text, _ = slow_client.communicate(timeout=60)
        assert "Traceback" not in text, text
        assert len(slow.requests) == 1, text
        return slow_client.returncode, text


def beat(scratch: Path) -> list[bytes]:
    return [path.read_bytes() for path in (scratch / ".hs" / "clients").iterdir()]


def hs_client(name: str, *words: str) -> tuple[int, str]:
    argv = [command("hs-client"), name, *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def test_other_content_under_the_same_ids_is_rejected_or_named(movers: list[MoverProcess], tmp_path: Path) -> None:
    code, text = both(movers, tmp_path, rows_of(6, 0), rows_of(6, 100))
    assert code == 1, text
    assert "1 done, 0 failed, 5 rejected, 0 done earlier, 1 done by another client too, with other content" in text
    assert "id 's3' is done already, by another client, with other content; give the changed row another id" in text
    assert "b.jsonl:1: conflict: id 's0' was done by run" in text
    dataset = tmp_path / "dst" / "both"
    lines = Ledgers.of(dataset)
    assert sorted(line.row.rpartition(":")[2] for line in lines.kinds(Rejected)) == ["2", "3", "4", "5", "6"]
    assert sorted(line.sample_id for line in lines.kinds(Done)) == ["s0", "s0", "s1", "s2", "s3", "s4", "s5"]

    where = (str(dataset), "--scratch", str(movers[0].scratch))
    code, text = hs_client("verify", *where)
    assert code == 1, text
    assert "wrong      1 two contents" in text
    assert "it counts for the id 's0'" in text
    assert "--repair" not in text
    for ledger in (dataset / "ledger").iterdir():
        os.utime(ledger, (0, 0))  # else the clients might still be at work, somewhere else
    code, text = hs_client("prune", "--yes", *where)
    assert (code, "deleted 1 files" in text) == (0, True), text
    code, text = hs_client("verify", *where)
    assert (code, "samples    6 done, 6 verified" in text) == (0, True), text


def test_equal_rows_are_not_sent_again_once_they_are_known_to_be_done(
    movers: list[MoverProcess], tmp_path: Path
) -> None:
    code, text = both(movers, tmp_path, rows_of(6, 0), rows_of(6, 0))
    assert code == 0, text
    assert "1 done, 0 failed, 0 rejected, 0 done earlier, 5 done by another client meanwhile" in text
    assert "pending" not in text


# -- the follower by itself


def done(sample: int, content: int, rid: str) -> Done:
    return Done(sample_id=f"s{sample}", rid=rid, content=f"{content:016x}")


def intent(sample: int, rid: str) -> Intent:
    return Intent(sample_id=f"s{sample}", rid=rid, n=1, ids_xxh3="", mask=[(0, 1)], row=f"p:{sample}")


@settings(deadline=None, max_examples=40)
@given(
    before=st.integers(0, 12),
    cut=st.integers(0, 40),
    content=st.lists(st.integers(1, 3), min_size=12, max_size=12),
    own=st.dictionaries(st.integers(0, 11), st.integers(1, 3)),
)
def test_every_line_since_the_history_counts_once_and_conflicts_are_those_that_differ(
    tmp_path_factory: pytest.TempPathFactory, before: int, cut: int, content: list[int], own: dict[int, int]
) -> None:
    paths = DatasetPaths(tmp_path_factory.mktemp("set"))
    paths.create()
    other = paths.ledger_file("00000001")
    log = AppendLog(other)
    rids = [f"hs-00000001-{at:08d}-00" for at in range(12)]
    log.append([done(at, content[at], rids[at]) for at in range(before)])
    known = max(0, other.stat().st_size - cut)  # the history's size may end in half a line
    follower = Meanwhile(paths.ledger, "0000000f", known_bytes={other.name: known}, ours=lambda sample_id: True)
    for at in range(before, 12):
        log.append([intent(at, rids[at]), done(at, content[at], rids[at])])
        follower.look()
        follower.note()
    log.close()
    follower.look()
    follower.note()
    assert [follower.content(f"s{at}") for at in range(before, 12)] == content[before:]
    assert follower.content("another") is None
    mine = AppendLog(paths.ledger_file("0000000f"))
    own_lines: list[LedgerLine] = []
    for at, value in own.items():
        rid = f"hs-0000000f-{at:08d}-00"
        own_lines += [intent(at, rid), done(at, value, rid)]
    mine.append(own_lines)
    mine.close()
    seen = {at for at in range(12) if follower.content(f"s{at}") is not None}
    differ = {at for at, value in own.items() if at in seen and value != content[at]}
    want = {Conflict(f"s{at}", f"p:{at}", "00000001", counts=True) for at in differ}
    assert set(follower.conflicts()) == want


def test_a_conflict_names_the_client_whose_row_differs(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path / "set")
    paths.create()

    def note(run: str, content: int) -> None:
        with AppendLog(paths.ledger_file(run)) as log:
            log.append([intent(1, f"hs-{run}-00000000-00"), done(1, content, f"hs-{run}-00000000-00")])

    follower = Meanwhile(paths.ledger, "0000000f", known_bytes={}, ours=lambda sample_id: True)
    note("00000002", 6)
    follower.look()
    note("00000001", 5)
    note("0000000f", 5)
    assert follower.conflicts() == [Conflict("s1", "p:1", "00000002", counts=True)]


def test_only_what_may_be_sent_here_is_kept(tmp_path: Path) -> None:
    paths = DatasetPaths(tmp_path / "set")
    paths.create()
    with AppendLog(paths.ledger_file("00000001")) as log:
        log.append([done(1, 5, "hs-00000001-00000000-00"), done(2, 5, "hs-00000001-00000001-00")])
    follower = Meanwhile(paths.ledger, "0000000f", known_bytes={}, ours=lambda sample_id: sample_id == "s2")
    follower.look()
    assert follower.content("s2") is None
    follower.note()
    assert (follower.content("s1"), follower.content("s2")) == (None, 5)
