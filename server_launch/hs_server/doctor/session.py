"""Sends canary requests, waits for what the ranks write of them, reads it and deletes it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hs_formats.control import ControlFolder, Marker
from hs_formats.errors import FormatError
from hs_formats.failure_ring import FailureReader
from hs_formats.names import CANARY_RUN, PartName, canary_of_every_rank, parse_temporary, part_prefix
from hs_formats.tiling import cover, record_complete
from hs_server.doctor.canary import Prompt
from hs_server.doctor.observation import Observation
from hs_server.doctor.records import read_rank
from hs_server.doctor.room import Promise, record_bytes
from hs_server.doctor.wire import Answer, Wire, WireError

__all__ = ["CanarySession", "Times", "remove_leftovers"]

_POLL_S = 0.01
_IMPATIENT_S = 0.3


@dataclass(frozen=True, slots=True)
class Times:
    """How long to wait, in seconds: for an answer, for parts after it, for room in scratch."""

    answer_s: float = 120.0
    parts_s: float = 15.0
    room_s: float = 60.0


def remove_leftovers(scratch: Path) -> int:
    """Delete all part files and temporaries of canary requests; returns how many.

    Raises:
        OSError: one is there and cannot be deleted.
    """
    removed = 0
    for entry in list(os.scandir(scratch)):
        name = PartName.try_parse(entry.name)
        if name is None and (temporary := parse_temporary(entry.name)) is not None:
            name = temporary[0]
        if name is not None and name.rid.run == CANARY_RUN:
            Path(entry.path).unlink(missing_ok=True)
            removed += 1
    return removed


@dataclass
class CanarySession:
    """Requests to one server whose live markers are `markers`. `pause(seconds)` sleeps, and may raise to end it all."""

    wire: Wire
    control: ControlFolder
    markers: Sequence[Marker]
    promise: Promise
    times: Times
    pause: Callable[[float], None]
    seen: list[Observation] = field(default_factory=list)
    tokens_per_s: float = 0.0

    def __post_init__(self) -> None:
        self._readers = {m.rank: FailureReader(self.control.failure_path(m.pid, m.rank)) for m in self.markers}
        self._failures: dict[str, dict[int, str]] = {}
        self._poll_failures()
        self._failures.clear()
        self._patience_s = self.times.parts_s

    def send(self, requests: Sequence[tuple[Prompt, str]]) -> None:
        """Send prompts under their rids, in one HTTP request, and add what comes of them to `seen`.

        Raises:
            StorageError: there is no room for their parts.
            OSError: scratch is gone.
        """
        all_write = self.markers[0].writers == "all"
        made = [Observation(prompt, rid, all_write or canary_of_every_rank(rid)) for prompt, rid in requests]
        need = sum(record_bytes(self.markers[0], it.prompt.n, copies=self._copies(it)) for it in made)
        self.promise.take(need, timeout_s=self.times.room_s, pause=self.pause)
        started_s = time.monotonic()
        try:
            answers = self._in_thread(requests)
        except WireError as error:
            for it in made:
                it.refused = str(error)
        else:
            for it, answer in zip(made, answers, strict=True):
                it.answer = answer
            spent_s = time.monotonic() - started_s
            self.tokens_per_s = max(self.tokens_per_s, sum(it.prompt.n for it in made) / max(spent_s, 1e-6))
        self._wait(made)
        for it in made:
            self._read(it)
        self.seen += made

    def _copies(self, it: Observation) -> int:
        return len(self.markers) if it.every_rank else self.markers[0].copies

    def _in_thread(self, requests: Sequence[tuple[Prompt, str]]) -> list[Answer]:
        """The request in a thread of its own, so that `pause` can end the wait."""
        answers: list[Answer] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                rids, prompts = [rid for _, rid in requests], [prompt.ids for prompt, _ in requests]
                answers.extend(self.wire.generate(rids, prompts, timeout_s=self.times.answer_s))
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
                errors.append(error)

        thread = threading.Thread(target=work, name="hs-doctor", daemon=True)
        thread.start()
        while thread.is_alive():
            self.pause(_POLL_S)
        if errors:
            raise errors[0]
        return answers

    def _wait(self, made: Sequence[Observation]) -> None:
        """Until everything is there that an answer makes expect. After one wait in vain the next ones are short."""
        open_ = [it for it in made if it.answer is not None and it.answer.finish != "abort"]
        deadline = time.monotonic() + self._patience_s
        while True:
            self._poll_failures()
            there = self._parts(open_)
            open_ = [it for it in open_ if not self._complete(it, there.get(it.rid, []))]
            if not open_:
                return
            if time.monotonic() >= deadline:
                self._patience_s = min(self._patience_s, _IMPATIENT_S)
                return
            self.pause(_POLL_S)

    def _complete(self, it: Observation, parts: Sequence[PartName]) -> bool:
        failed = self._failures.get(it.rid, {})
        if not it.every_rank:
            marker = self.markers[0]
            return bool(failed) or record_complete(
                it.prompt.n,
                [(part.rank, part.start, part.stop) for part in parts],
                writers=marker.writers,
                expected_ranks=marker.expected_ranks,
            )
        return all(
            rank in failed or cover(it.prompt.n, [(part.start, part.stop) for part in parts if part.rank == rank]).exact
            for rank in self._readers
        )

    def _read(self, it: Observation) -> None:
        it.failures = dict(self._failures.get(it.rid, {}))
        parts = self._parts([it]).get(it.rid, [])
        for rank in sorted({part.rank for part in parts}):
            it.records[rank] = read_rank(self.control.scratch, [part for part in parts if part.rank == rank])
        for part in parts:
            (self.control.scratch / str(part)).unlink(missing_ok=True)

    def _parts(self, wanted: Iterable[Observation]) -> dict[str, list[PartName]]:
        rids = {it.rid for it in wanted}
        found: dict[str, list[PartName]] = {}
        for text in os.listdir(self.control.scratch):
            if text.startswith(part_prefix(CANARY_RUN)) and (name := PartName.try_parse(text)) is not None:
                rid = str(name.rid)
                if rid in rids:
                    found.setdefault(rid, []).append(name)
        return found

    def _poll_failures(self) -> None:
        for rank, reader in self._readers.items():
            try:
                for failure in reader.poll():
                    self._failures.setdefault(failure.rid, {})[rank] = failure.reason
            except FormatError:
                continue
