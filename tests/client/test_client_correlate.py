"""The correlator: whatever happens in whatever order, its sums are those of its attempts, and waiting costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import anyio
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from hs_client.admission import RecordCost
from hs_client.attempt import Answer, Attempt, Phase, Verdict
from hs_client.correlate import Correlator
from hs_client.prepare import Prepared
from hs_client.scan import Look, Scanner
from hs_formats.control import ControlFolder
from hs_formats.dataset import DatasetPaths
from hs_formats.failure_ring import Failure
from hs_formats.hashing import ids_xxh3
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid

COST = RecordCost(bytes_per_token=96, copies=1, ranks=1, chunk_tokens=16)
N = 6
RUN = "0000000a"


class Script:
    """A scanner whose looks are written down beforehand."""

    def __init__(self) -> None:
        self.next = Look()

    def look(self) -> Look:
        found, self.next = self.next, Look()
        return found


def correlator(script: Any, settled: dict[str, Verdict], *, part_timeout_s: float = 60.0) -> Correlator:
    def settle(attempt: Attempt, verdict: Verdict) -> None:
        assert attempt.rid not in settled, "settled twice"
        settled[attempt.rid] = verdict

    return Correlator(script, part_timeout_s=part_timeout_s, settle=settle)


def attempt(row: int, n: int = N) -> Attempt:
    ids = np.arange(n, dtype=np.int32)
    sample = Prepared(f"s{row}", f"f:{row}", ids, [(0, n)], ids_xxh3(list(range(n))))
    return Attempt(str(Rid(RUN, row, 0)), sample, 0, COST, "first", [0])


def part(rid: str, start: int, stop: int, n: int = N) -> PartName:
    return PartName(Rid.parse(rid), start, stop, n, 0)


def line(name: PartName) -> ManifestLine:
    return ManifestLine(
        part=str(name),
        status="stored",
        path="p",
        raw_bytes=1,
        stored_bytes=1,
        codec="none",
        ids_xxh3=ids_xxh3(list(range(name.start, name.stop))),
    )


GOOD = Answer("length", "", N, 0)
STEPS = ("answer", "bad answer", "abort", "lost", "drop", "part", "gone", "line", "failure", "wait")


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(STEPS), st.integers(0, 1)), max_size=30))
def test_the_sums_are_those_of_the_attempts(steps: list[tuple[int, str, int]]) -> None:
    script, settled = Script(), dict[str, Verdict]()

    async def play() -> None:
        clock = [1000.0]
        with patch("hs_client.correlate.anyio.current_time", lambda: clock[0]):
            follower = correlator(script, settled)
            all_ = [attempt(row) for row in range(3)]
            for one in all_:
                follower.add(one)
            shown: set[str] = set()
            for at, step, half in steps:
                one = all_[at]
                piece = part(one.rid, 3 * half, 3 * half + 3)
                match step:
                    case "answer":
                        follower.answered(one, GOOD)
                    case "bad answer":
                        follower.answered(one, Answer("length", "", N, 2))
                    case "abort":
                        follower.answered(one, Answer("abort", "", N, 0))
                    case "lost":
                        follower.lost(one)
                    case "drop":
                        follower.drop(one)
                    case "part" if str(piece) not in shown:
                        shown.add(str(piece))
                        script.next.appeared.append((one.rid, piece))
                    case "gone" if str(piece) in shown:
                        script.next.gone.append((one.rid, piece))
                    case "line":
                        script.next.lines.append(line(piece))
                    case "failure":
                        script.next.failures.append(Failure(1, one.rid, "no space"))
                    case "wait":
                        clock[0] += 61
                await follower.tick()
                followed = follower._attempts
                assert follower.outstanding_bytes() == sum(each.promised_bytes() for each in followed.values())
                for phase in Phase:
                    assert follower.count(phase) == sum(each.phase is phase for each in followed.values())
                assert follower.to_store() == sum(
                    each.phase is Phase.ANSWERED and each.all_seen for each in followed.values()
                )
                assert not any(each.phase is Phase.CLOSED for each in followed.values())

    anyio.run(play)
    for rid, verdict in settled.items():
        assert verdict.done or verdict.kind in {"cached tokens", "aborted", "capture failed", "hook silent"}, (
            rid,
            verdict,
        )


@pytest.mark.anyio
async def test_records_that_wait_for_the_mover_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    script, settled = Script(), dict[str, Verdict]()
    follower = correlator(script, settled)
    waiting = [attempt(row) for row in range(500)]
    for one in waiting:
        follower.add(one)
        script.next.appeared.append((one.rid, part(one.rid, 0, N)))
        follower.answered(one, GOOD)
    await follower.tick()
    assert (follower.to_store(), follower.outstanding_bytes(), settled) == (500, 0, {})
    judged: list[str] = []
    verdict: Callable[..., Verdict | None] = Attempt.verdict

    def counted(self: Attempt, *arguments: Any) -> Verdict | None:
        judged.append(self.rid)
        return verdict(self, *arguments)

    monkeypatch.setattr(Attempt, "verdict", counted)
    for _ in range(50):
        assert not await follower.tick()
    assert judged == []
    script.next.lines.append(line(part(waiting[7].rid, 0, N)))
    await follower.tick()
    assert judged == [waiting[7].rid]
    assert settled == {waiting[7].rid: Verdict()}


@pytest.mark.anyio
async def test_what_has_ended_is_not_remembered_until_its_time_would_be_over() -> None:
    script, settled = Script(), dict[str, Verdict]()
    follower = correlator(script, settled, part_timeout_s=3600)
    slow = attempt(0)
    follower.add(slow)
    follower.answered(slow, GOOD)
    for row in range(1, 5000):
        one = attempt(row)
        follower.add(one)
        follower.answered(one, GOOD)
        script.next.lines.append(line(part(one.rid, 0, N)))
        await follower.tick()
    assert len(settled) == 4999
    assert len(follower._due) < 2000
    assert slow.rid in {rid for _, rid in follower._due}


@pytest.mark.anyio
async def test_parts_that_lie_in_scratch_may_lie_there_for_ever_but_must_not_vanish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script, settled = Script(), dict[str, Verdict]()
    clock = [0.0]
    monkeypatch.setattr("hs_client.correlate.anyio.current_time", lambda: clock[0])
    follower = correlator(script, settled, part_timeout_s=10)
    one = attempt(0)
    follower.add(one)
    script.next.appeared.append((one.rid, part(one.rid, 0, N)))
    follower.answered(one, GOOD)
    for _ in range(30):
        await follower.tick()
        clock[0] += 7
    assert settled == {}
    script.next.gone.append((one.rid, part(one.rid, 0, N)))
    for _ in range(3):
        await follower.tick()
        clock[0] += 7
    assert settled[one.rid].kind == "hook silent"
    assert "were removed" in settled[one.rid].reason


def test_a_look_that_fails_half_way_loses_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    control = ControlFolder(tmp_path / "scratch")
    control.create()
    paths = DatasetPaths(tmp_path / "data")
    scanner = Scanner(control, paths, {RUN})
    name = str(part(str(Rid(RUN, 1, 0)), 0, N))
    (control.scratch / name).touch()
    (control.scratch / f"hs-{RUN}-no-part").touch()

    def broken() -> None:
        raise OSError("the destination is away")

    with monkeypatch.context() as patched:
        patched.setattr(scanner, "_read_lines", broken)
        with pytest.raises(OSError, match="away"):
            scanner.look()
    (control.scratch / name).unlink()
    look = scanner.look()
    assert [str(found) for _, found in look.appeared] == [str(found) for _, found in look.gone] == [name]
    assert not scanner.look()
