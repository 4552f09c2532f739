"""Runs of `hs-client` against the fake server, with a real mover, and a check of what they left on disk."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chain import command
from fake_server import FakeServer, fake_states
from hs_formats.dataset import DatasetPaths
from hs_formats.ledger import Done, Intent, LedgerLine, read_ledger

__all__ = [
    "Ended",
    "Ledgers",
    "Rows",
    "argv",
    "check_records",
    "client",
    "end_started",
    "ids_of",
    "prompts",
    "rows_of",
    "start",
]

Rows = list[dict[str, Any]]

_FAST = ("--progress-interval", "0.5", "--part-timeout", "3", "--mover-timeout", "20", "--server-timeout", "20")

_started: list[subprocess.Popen[str]] = []


@dataclass(frozen=True)
class Ended:
    """A client that has ended."""

    code: int
    text: str


@dataclass
class Ledgers:
    """All lines of all ledgers of a dataset."""

    lines: list[LedgerLine] = field(default_factory=list)

    @classmethod
    def of(cls, dataset: Path) -> Ledgers:
        """Read them, oldest run first."""
        found = cls()
        for path in sorted(DatasetPaths(dataset).ledger.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns):
            found.lines += read_ledger(path)
        return found

    def kinds(self, kind: type) -> list[Any]:
        """Lines of one kind."""
        return [line for line in self.lines if isinstance(line, kind)]


def argv(server: FakeServer, files: Iterable[Path], *options: str) -> list[str]:
    """The command line."""
    defaults = [
        option for pair in zip(_FAST[::2], _FAST[1::2], strict=True) if pair[0] not in options for option in pair
    ]
    where = ["--server", server.url, "--scratch", str(server.scratch)]
    return [command("hs-client"), "run", *map(str, files), *where, *defaults, *options]


def start(
    server: FakeServer,
    file: Path,
    *options: str,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A client in the background, its output in `log` or a pipe."""
    with contextlib.ExitStack() as stack:
        output: Any = subprocess.PIPE if log is None else stack.enter_context(log.open("a"))
        process = subprocess.Popen(
            argv(server, [file], *options),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    _started.append(process)
    return process


def end_started() -> None:
    """Kill what a failed test has left running."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
        process.communicate()


def client(
    server: FakeServer,
    file: Path,
    *options: str,
    timeout_s: float = 90,
    environment: Mapping[str, str] | None = None,
    more: Sequence[Path] = (),
) -> Ended:
    """A client from start to end. Its output never holds a traceback or a carriage return."""
    process = start(server, file, *options, *map(str, more), environment=environment)
    try:
        text, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        raise AssertionError(f"the client did not end in {timeout_s} s:\n{text}") from None
    assert "Traceback" not in text, text
    assert "\r" not in text
    return Ended(process.returncode, text)


def rows_of(count: int, *, longest: int = 40) -> Rows:
    """`count` different rows of ids, of 1, 2 … `longest` tokens and again from 1."""
    return [{"id": f"s{i}", "input_ids": [(7 * i + j) % 300 for j in range(1, 2 + i % longest)]} for i in range(count)]


def ids_of(rows: Rows) -> dict[str, list[int]]:
    """What `check_records` expects of `rows`."""
    return {str(row["id"]): row["input_ids"] for row in rows}


def prompts(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """A prompts file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def check_records(dataset: Path, expected: Mapping[str, Sequence[int]], *, hidden: int = 8) -> None:
    """Every expected sample is there once, with its own ids and the states that the fake server made for them."""
    from hs_formats.reader import HiddenStateDataset

    found = HiddenStateDataset(dataset)
    assert sorted(found.sample_ids) == sorted(expected)
    for sample in found:
        ids = list(expected[sample.sample_id])
        assert sample.input_ids.tolist() == ids
        want = fake_states(ids, 0, len(ids), slots=len(found.info.boundaries) + 1, hidden=hidden)
        np.testing.assert_array_equal(sample.hidden_states.numpy(), want)
    ledgers = Ledgers.of(dataset)
    done = ledgers.kinds(Done)
    assert {line.rid for line in done} <= {line.rid for line in ledgers.kinds(Intent)}
    assert len(done) == len(expected), "a sample was done twice"
