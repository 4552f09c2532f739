"""What is shown of many nodes, and what their summaries add up to."""

from __future__ import annotations

import errno
import io
from typing import Any

import pytest

from hs_client.cluster.ending import ClientEnd, client_facts, client_line, total_tally
from hs_client.cluster.view import NodeLine, TotalLine, View, node_text, total_text
from hs_client.leases.holder import Totals
from hs_client.leases.protocol import Hello, State
from hs_client.summary import summary, summary_lines
from hs_client.tally import Tally

STATE = State(
    done=12,
    failed=1,
    tokens_per_s=1234.4,
    limiting="mover",
    used_bytes=64_000_000,
    limit_bytes=256_000_000,
    in_flight=3,
    waiting="room in scratch",
)
NODE = NodeLine("node 0 (a)", held=16, state=STATE)
TOTAL = TotalLine(ended=20, total=60, failed=1, rejected=2, tokens_per_s=2000.0, left_s=80.0, nodes=2, wanted=3)
HELLO = Hello(run="0000abcd", rows=60, left=55, inputs_hash="h", done=3, rejected=2)


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and what it would show."""

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        lines: list[str] = []
        for piece in self.getvalue().split("\x1b[J"):
            text, _, up = piece.partition("\x1b[")
            lines += text.splitlines()
            if up:
                del lines[len(lines) - int(up.removesuffix("F")) :]
        return lines


def clock() -> float:
    return 0.0


def test_a_line_for_a_node() -> None:
    assert node_text(NODE) == (
        "node 0 (a): 1,234 tokens/s, 13 samples, limited by the mover, scratch 25% of 256.00 MB, 16 rows held,"
        " 3 in flight; waiting for room in scratch"
    )
    assert node_text(NodeLine("node 0 (a)")) == "node 0 (a): starts"
    assert node_text(NodeLine("node 0 (a)", phase="stops", state=STATE)) == "node 0 (a): stops"


def test_a_line_for_all() -> None:
    assert total_text(TOTAL) == (
        "20/60 samples, 1 failed, 2 rejected, 2,000 tokens/s, 1 min 20 s left, 2 of 3 nodes send"
    )
    nothing = TotalLine(ended=0, total=0, failed=0, rejected=0, tokens_per_s=0, left_s=None, nodes=0, wanted=2)
    assert total_text(nothing) == "no client has its plan yet, 0 of 2 nodes send"


def test_on_a_terminal_the_block_is_redrawn_in_place_and_lines_stay_above_it() -> None:
    terminal = Terminal()
    view = View(interval_s=10, stream=terminal, clock=clock)
    view.show([NODE, NodeLine("node 1 (b)")], TOTAL)
    view.say("warning: something")
    view.show([NODE], TOTAL)
    view.say("another\x1b[2J thing")
    assert terminal.screen == [
        "warning: something",
        "another\\x1b[2J thing",
        node_text(NODE)[:119],
        total_text(TOTAL),
    ]
    view.close()
    view.say("the end")
    assert terminal.screen[-2:] == [total_text(TOTAL), "the end"]


def test_elsewhere_lines_are_printed_as_they_come() -> None:
    stream = io.StringIO()
    now = [0.0]
    view = View(interval_s=10, stream=stream, clock=lambda: now[0])
    due = [view.due]
    now[0] = 10.0
    due.append(view.due)
    view.show([NODE], TOTAL)
    assert [*due, view.due] == [False, True, False]
    assert stream.getvalue() == f"{node_text(NODE)}\n{total_text(TOTAL)}\n"


def of_client(**counts: Any) -> dict[str, Any]:
    """The summary of a client that has done something."""
    tally = Tally(**counts)
    tally.reject("p.jsonl:3", "no tokens")
    tally.waited("room in scratch: 3 MB", 2.0)
    return summary(tally, spent_s=2.0, pending=0, exit_code=1, servers=["http://s"], run="0000abcd")


def test_summaries_add_up_and_a_lost_client_has_said_how_far_it_was() -> None:
    ends = [
        ClientEnd("node 0 (a)", 1, hello=HELLO, summary=of_client(done=30, tokens=300, stored_bytes=10, raw_bytes=20)),
        ClientEnd("node 1 (b)", 1, hello=HELLO, summary=of_client(done=20, tokens=200, stored_bytes=30, raw_bytes=60)),
        ClientEnd("node 1 (b)", None, "gone", done=4, hello=HELLO, state=State(done=3, tokens=44)),
    ]
    totals = Totals(done=54, rejected=2)
    tally = total_tally(totals, HELLO, ends, finished=True)
    assert (tally.done, tally.rejected, tally.elsewhere, tally.left) == (54, 2, 1, 0)
    assert (tally.tokens, tally.stored_bytes, tally.raw_bytes) == (544, 40, 80)
    assert tally.waited_s == {"room in scratch": 4.0}
    text = "\n".join(summary_lines(tally, spent_s=4.0, pending=0, ledger=True))
    assert "54 done, 0 failed, 2 rejected, 3 done earlier, 1 done by another client meanwhile" in text
    assert "p.jsonl:3: no tokens" in text
    assert total_tally(totals, HELLO, ends, finished=False).left == 1
    assert client_line(ends[0]) == ("node 0 (a): run 0000abcd, 30 done, 1 rejected, 10 B stored in 2.0 s, 150 tokens/s")
    assert client_line(ends[2]) == "node 1 (b): run 0000abcd, 4 done; lost: gone"
    facts = client_facts(ends[2])
    assert (facts["exit_code"], facts["done"], facts["summary"]) == (None, 4, {})


def test_generated_answers_add_up() -> None:
    one, two = Tally(done=1), Tally(done=1)
    for number, tally in enumerate((one, two)):
        tally.generation.begin(0.0)
        tally.generation.answered(10, 1.0)
        tally.generation.end(5.0 + number)
    ends = [
        ClientEnd("n", 0, hello=HELLO, summary=summary(tally, spent_s=1.0, pending=0, exit_code=0))
        for tally in (one, two)
    ]
    total = total_tally(Totals(done=2), HELLO, ends, finished=False).generation
    assert (total.answers, total.tokens, total.requests, total.seconds) == (2, 20, 2, 6.0)


class Gone(Terminal):
    """A terminal that is closed; `lacks_room`: a full disk."""

    def __init__(self, *, lacks_room: bool) -> None:
        super().__init__()
        self._error = OSError(errno.ENOSPC if lacks_room else errno.EIO, "no")
        self.thrown_away = False

    def write(self, text: str) -> int:
        raise self._error

    def fileno(self) -> int:
        self.thrown_away = True
        raise io.UnsupportedOperation


@pytest.mark.parametrize("lacks_room", [True, False])
def test_a_run_goes_on_whether_or_not_it_is_read(*, lacks_room: bool) -> None:
    stream = Gone(lacks_room=lacks_room)
    view = View(interval_s=10, stream=stream)
    view.say("one")
    before = stream.thrown_away
    view.show([NODE], TOTAL)
    view.say("two")
    view.close()
    assert before == (not lacks_room)
