"""Writes records into scratch as fast as the admission rule lets it, as a server with a client in front would."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

import numpy as np

from benchmarks.mover.parts import States, part_of
from hs_client.admission import CreditView, decide
from hs_formats.control import ControlFolder, now_s, used_bytes
from hs_formats.hashing import xxh3_hex
from hs_formats.part import PART_OVERHEAD_BYTES
from hs_mover.pace import Pace

__all__ = ["Producer"]

_POLL_S = 0.05
_ID_BYTES = 8


class Producer:
    """Threads that ask for credit, write a record by rename, and ask again, while the block runs.

    Attributes:
        written: xxh3 of each part that was renamed into scratch, by name.
        peak_bytes: largest fill seen right after a part was written.
        largest_bytes: what the largest record may take.
        errors: what went wrong.
    """

    def __init__(self, scratch: Path, *, bytes_per_s: int | None, rows: tuple[int, int], threads: int = 4) -> None:
        self.written: dict[str, str] = {}
        self.peak_bytes = 0
        self.largest_bytes = 0
        self.errors: list[str] = []
        self._scratch = scratch
        self._control = ControlFolder(scratch)
        self._rows = rows
        self._pace = Pace(bytes_per_s)
        self._lock = threading.Lock()
        self._promised_bytes = 0
        self._row = 0
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(seed,), name=f"produce-{seed}") for seed in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._pace.lift()
        for thread in self._threads:
            thread.join()

    def set_rate(self, bytes_per_s: int | None) -> None:
        """From the next record on."""
        self._pace = Pace(bytes_per_s)

    def _run(self, seed: int) -> None:
        states, dice = States(seed=seed), np.random.default_rng(seed)
        try:
            while not self._stop.is_set():
                self._one(states, int(dice.integers(self._rows[0], self._rows[1] + 1)))
        except Exception as error:  # noqa: BLE001 - the run is invalid then
            self.errors.append(f"producer: {type(error).__name__}: {error}")

    def _one(self, states: States, rows: int) -> None:
        need_bytes = rows * (states.row_bytes + _ID_BYTES) + PART_OVERHEAD_BYTES
        self._pace.take(need_bytes)
        while not self._granted(need_bytes):
            if self._stop.wait(_POLL_S):
                return
        with self._lock:
            row, self._row = self._row, self._row + 1
            self.largest_bytes = max(self.largest_bytes, need_bytes)
        name, pieces = part_of(states, row, rows)
        data = b"".join(pieces)
        temporary = self._scratch / f".{name}.{'0' * 16}.tmp"
        temporary.write_bytes(data)
        temporary.rename(self._scratch / name)
        with self._lock:
            self.written[name] = xxh3_hex([data])
            self._promised_bytes -= need_bytes
            self.peak_bytes = max(self.peak_bytes, used_bytes(os.statvfs(self._scratch)))

    def _granted(self, need_bytes: int) -> bool:
        with self._lock:
            view = CreditView(
                at_s=now_s(),
                mover=self._control.read_mover(),
                used_bytes=used_bytes(os.statvfs(self._scratch)),
                own_bytes=self._promised_bytes,
                others_bytes=0,
            )
            if decide(view, need_bytes).verdict != "grant":
                return False
            self._promised_bytes += need_bytes
            return True
