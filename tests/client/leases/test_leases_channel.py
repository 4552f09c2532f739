"""A leased client in the test process, where a blocking call in the event loop is an error; and what is refused."""

from __future__ import annotations

import errno
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from chain import command, running_mover
from client_runs import check_records, ids_of, prompts, rows_of
from fake_server import serving
from hs_client.errors import DestinationBroken, LeasesBroken, NoLeases
from hs_client.leases.channel import Channel
from hs_client.leases.protocol import (
    MAX_LINE_BYTES,
    ClientMessage,
    Ended,
    Finish,
    Hello,
    Lease,
    Message,
    Over,
    Want,
    client_message,
    encode_line,
)
from hs_client.meanwhile import Meanwhile
from hs_client.run_command import run_command
from hs_client.settings import Endpoint, RunSettings
from hs_formats.errors import HsError

ROWS = rows_of(40)


class Other:
    """The other end of the leases: `answer` says what to send for what was said; all that was said is kept."""

    def __init__(self, answer: Callable[[ClientMessage], list[bytes]]) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._answer = answer
        self.said: list[ClientMessage] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with self._ours, self._ours.makefile("rb") as lines:
            for line in lines:
                self.said.append(client_message(line))
                for data in self._answer(self.said[-1]):
                    self._ours.sendall(data)

    def end(self) -> list[ClientMessage]:
        """All that was said, after the end of the stream."""
        self._thread.join(20)
        assert not self._thread.is_alive(), "the stream does not end"
        return self.said


def lines(*messages: Message) -> list[bytes]:
    return [encode_line(message) for message in messages]


@contextmanager
def leased(tmp_path: Path, answer: Callable[[ClientMessage], list[bytes]]) -> Iterator[tuple[RunSettings, Other]]:
    scratch = tmp_path / "scratch"
    file = prompts(tmp_path / "p.jsonl", ROWS)
    with serving(scratch) as server, running_mover(scratch, tmp_path / "dst", tmp_path):
        other = Other(answer)
        endpoint = Endpoint(server.url, scratch)
        yield RunSettings(files=[file], servers=[endpoint], concurrency=8, leases=other.theirs.detach()), other


def test_no_call_blocks_the_loop(tmp_path: Path) -> None:
    left = [Lease(start=30, stop=40), Lease(start=0, stop=12), Lease(start=12, stop=30)]
    ended: list[int] = []

    def answer(message: ClientMessage) -> list[bytes]:
        match message:
            case Want() if left:
                return lines(left.pop(0))
            case Ended():
                ended.extend(range(message.start, message.stop))
                return lines(Finish()) if len(ended) == 40 else []
            case _:
                return []

    with leased(tmp_path, answer) as (settings, other):
        assert run_command(settings) == 0
        said = other.end()
    check_records(tmp_path / "dst" / "p", ids_of(ROWS))
    assert sorted(ended) == list(range(40))
    assert isinstance(said[0], Hello)
    assert isinstance(said[-1], Over)
    assert (said[-1].exit_code, said[-1].error, said[-1].summary["samples"]["done"]) == (0, "", 40)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ([b'{"type":"dance"}\n'], "dance"),
        ([b"x" * 65536] * (MAX_LINE_BYTES // 65536), "a line without an end"),
        (lines(Lease(start=30, stop=41)), "a lease of rows to 41, and there are 40"),
        (lines(Lease(start=0, stop=9), Lease(start=8, stop=10)), "rows 8 to 10 are leased already"),
    ],
)
def test_what_is_not_understood_ends_the_run(tmp_path: Path, data: list[bytes], reason: str) -> None:
    def answer(message: ClientMessage) -> list[bytes]:
        return data if isinstance(message, Hello) else []

    with leased(tmp_path, answer) as (settings, other):
        with pytest.raises(LeasesBroken, match=reason):
            run_command(settings)
        over = other.end()[-1]
    assert isinstance(over, Over)
    assert over.exit_code == 3
    assert reason in over.error
    assert over.summary["run"]


def test_ledgers_that_cannot_be_read_for_too_long_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: Meanwhile, *, closely: bool = False) -> None:
        if closely:
            raise OSError(errno.ESTALE, "Stale file handle")

    def answer(message: ClientMessage) -> list[bytes]:
        return lines(Lease(start=0, stop=40)) if isinstance(message, Want) else []

    monkeypatch.setattr(Meanwhile, "look", look)
    with leased(tmp_path, answer) as (settings, other):
        with pytest.raises(DestinationBroken, match="Stale file handle"):
            run_command(replace(settings, mover_timeout_s=1.0))
        over = other.end()[-1]
    assert isinstance(over, Over)
    assert (over.exit_code, over.summary["samples"]["done"], over.summary["samples"]["pending"]) == (5, 0, 40)


def test_who_cannot_begin_says_why(tmp_path: Path) -> None:
    other = Other(lambda _: [])
    file = prompts(tmp_path / "p.jsonl", ROWS)
    endpoint = Endpoint("http://127.0.0.1:9", tmp_path / "scratch")
    with pytest.raises(HsError) as raised:
        run_command(RunSettings(files=[file], servers=[endpoint], leases=other.theirs.detach()))
    assert other.end() == [Over(exit_code=raised.value.exit_code, error=str(raised.value))]


def test_what_is_no_stream_socket_is_refused(tmp_path: Path) -> None:
    one, other = socket.socketpair(type=socket.SOCK_DGRAM)
    with one, other, (tmp_path / "file").open("w") as file:
        for fd, reason in ((file.fileno(), "ot a socket|on-socket"), (one.fileno(), "not a stream"), (999, "Bad file")):
            with pytest.raises(NoLeases, match=f"--leases {fd} is no socket to who holds the leases .*{reason}"):
                Channel(fd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["p.jsonl", "--limit", "3"], "--limit does not go with --leases"),
        (["p.jsonl", "--shard", "0/2"], "--shard does not go with --leases"),
        (["p.jsonl", "--dry-run"], "--dry-run does not go with --leases"),
        (
            ["p.jsonl", "-", "--dataset", "p"],
            "standard input (-) does not go with --leases: other nodes cannot read it",
        ),
        (["p.jsonl"], "--leases 3 is no socket to who holds the leases"),
    ],
)
def test_options_about_all_rows_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    prompts(tmp_path / "p.jsonl", ROWS)
    argv = [command("hs-client"), "run", *words, "--leases", "3"]
    done = subprocess.run(
        argv, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: {said}"), done.stderr
    assert len(done.stderr.splitlines()) == 1
