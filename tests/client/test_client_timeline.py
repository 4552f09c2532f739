"""The timeline of a run: what is in it after a run, and that a run goes on where it cannot be written."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest
from hypothesis import given, strategies as st

from chain import MoverProcess
from client_runs import client, prompts
from fake_server import Act, serving
from hs_client import timeline_log
from hs_client.limiter import Limiter, Party
from hs_client.tally import Tally
from hs_client.timeline_log import TimelineLog
from hs_formats.timeline import interval_s, read_timeline

PARTIES: Sequence[Party] = ("", "tokeniser", "server", "scratch", "mover")


def test_a_run_leaves_a_timeline(mover: MoverProcess, tmp_path: Path) -> None:
    rows = [{"id": f"s{i}", "input_ids": list(range(1, 12))} for i in range(40)]
    file = prompts(tmp_path / "p.jsonl", rows)
    with serving(mover.scratch, act=lambda number, rid, ids: Act(delay_s=0.25)) as server:
        ended = client(server, file, "--concurrency", "3")
    assert ended.code == 0, ended.text
    (path,) = (tmp_path / "dst" / "p" / "timeline").iterdir()
    points = read_timeline(path)
    assert len(points) >= 3  # it takes 40 · 0.25 s / 3
    for before, after in itertools.pairwise(points):
        assert before.run_s <= after.run_s
        assert before.done <= after.done
        assert before.answered <= after.answered
        for party, seconds in before.waited_s.items():
            assert after.waited_s[party] >= seconds
    last = points[-1]
    assert (last.done, last.tokens, last.answered, last.exit_code, last.error) == (40, 440, 40, 0, "")
    assert [point.exit_code for point in points[:-1]] == [-1] * (len(points) - 1)
    assert last.raw_bytes > 0
    assert points[1].limit_bytes > 0
    assert points[1].p50_s >= 0.25
    assert points[1].in_flight == 3
    assert last.waited_s["server"] > 0.5 * last.run_s
    assert sum(last.waited_s.values()) <= last.run_s + 0.01


def test_a_run_that_fails_says_so_in_its_timeline(mover: MoverProcess, tmp_path: Path) -> None:
    file = prompts(tmp_path / "p.jsonl", [{"id": "a", "input_ids": [1, 2, 3]}])
    with serving(mover.scratch, act=lambda number, rid, ids: Act(status=400, body={"error": "no"})) as server:
        ended = client(server, file)
    assert ended.code == 1, ended.text
    (path,) = (tmp_path / "dst" / "p" / "timeline").iterdir()
    assert read_timeline(path)[-1].failed == 1
    assert read_timeline(path)[-1].exit_code == 1


def test_a_destination_that_takes_no_timeline_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "timeline").write_text("in the way")
    said: list[str] = []
    log = TimelineLog(tmp_path / "timeline" / "0000abcd.jsonl", Tally(), say=said.append)
    log.end(0, "")
    log.end(0, "")
    assert len(said) == 1
    assert said[0].startswith("warning: the timeline ")
    gone = tmp_path / "gone" / "timeline" / "0000abcd.jsonl"
    TimelineLog(gone, Tally(), say=said.append).end(0, "")
    assert len(said) == 2
    assert not (tmp_path / "gone").exists(), "a destination that is away must not be made anew"


async def hung_run(log: TimelineLog) -> None:
    with anyio.move_on_after(0.2):
        await log.serve()


def test_a_destination_that_hangs_does_not_keep_a_run_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    ended: list[bool] = []
    monkeypatch.setattr(timeline_log, "_END_S", 0.05)
    monkeypatch.setattr(TimelineLog, "_write", lambda self, point: ended.append(release.wait(60)))
    said: list[str] = []
    log = TimelineLog(tmp_path / "t.jsonl", Tally(), say=said.append)
    try:
        anyio.run(hung_run, log)
        log.end(0, "")
        assert ended == [], "both came back while the writer hangs"
        assert len(said) == 1
    finally:
        release.set()


def test_a_missing_timeline_is_an_empty_one_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    assert read_timeline(path) == []
    TimelineLog(path, Tally(done=3), say=print).end(130, "")
    path.write_bytes(path.read_bytes() + b'{"at":"x","run_s":1')
    TimelineLog(path, Tally(done=4), say=print).end(0, "")
    assert [point.done for point in read_timeline(path)] == [3, 4]


@given(st.lists(st.tuples(st.sampled_from(PARTIES), st.floats(0, 100)), max_size=20), st.floats(0, 10))
def test_totals_add_up_to_the_time(steps: list[tuple[Party, float]], rest_s: float) -> None:
    limiter = Limiter(0.0)
    at_s = 0.0
    wanted = dict.fromkeys(PARTIES, 0.0)
    now: Party = ""
    for party, spent_s in steps:
        wanted[now] += spent_s
        at_s += spent_s
        limiter.wait_for(party, at_s)
        now = party
    wanted[now] += rest_s
    totals = limiter.totals_s(at_s + rest_s)
    assert {party: totals.get(party, 0.0) for party in PARTIES} == pytest.approx(wanted)


def test_long_runs_have_short_timelines() -> None:
    at_s, lines = 0.0, 0
    while at_s < 86_400:
        step = interval_s(at_s)
        assert 2 <= step <= 60
        at_s += step
        lines += 1
    assert 1_440 < lines < 3_000
