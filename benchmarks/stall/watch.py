"""Watching a server from outside while it is under load: health, memory, and the requests it gives up."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.serving import Server
from hs_formats.failure_ring import FailureReader
from hs_server.readiness import http_status

__all__ = ["Watch", "growth", "resident_bytes"]

_PERIOD_S = 1.0
_HEALTH_TIMEOUT_S = 20.0


def resident_bytes(pid: int) -> int | None:
    """Anonymous memory of a process, its files and shared memory left out; None when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)


def growth(samples: dict[str, list[list[float]]]) -> list[dict[str, Any]]:
    """For each process, medians of the second and the last sixth of its samples [seconds, bytes].

    The first sixth is left out: caches of allocators fill in it.
    """
    found: list[dict[str, Any]] = []
    for pid, rows in samples.items():
        values = [row[1] for row in rows]
        sixth = max(1, len(values) // 6)
        early = statistics.median(values[sixth : 2 * sixth] or values)
        late = statistics.median(values[-sixth:])
        found.append(
            {"pid": int(pid), "early_bytes": int(early), "late_bytes": int(late), "grown_bytes": int(late - early)}
        )
    return found


class Watch:
    """A thread that asks for health and samples memory once a second, and collects what the server gives up."""

    def __init__(self, server: Server) -> None:
        self.health_checks = 0
        self.health_slowest_s = 0.0
        self.health_problems: list[str] = []
        self.given_up: dict[str, str] = {}
        self.overwritten = 0
        self._server = server
        self._pids = [marker.pid for marker in server.markers()]
        self.memory: dict[str, list[list[float]]] = {str(pid): [] for pid in self._pids}
        self._readers: dict[Path, FailureReader] = {}
        self._lock = threading.Lock()
        self._started_s = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="bench-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()

    def poll_failures(self) -> None:
        """Read the failure records now."""
        with self._lock:
            for path in self._server.control.failure_paths():
                reader = self._readers.setdefault(path, FailureReader(path))
                self.given_up.update((failure.rid, failure.reason) for failure in reader.poll())
            self.overwritten = sum(reader.lost for reader in self._readers.values())

    def _work(self) -> None:
        while not self._stop.wait(_PERIOD_S):
            self.poll_failures()
            began = time.monotonic()
            status = http_status("127.0.0.1", self._server.target.port, "/health", timeout_s=_HEALTH_TIMEOUT_S)
            self.health_slowest_s = max(self.health_slowest_s, time.monotonic() - began)
            self.health_checks += 1
            if status != 200:
                self.health_problems.append(f"status {status} after {time.monotonic() - self._started_s:.0f} s")
            for pid in self._pids:
                size = resident_bytes(pid)
                if size is None:
                    self.health_problems.append(f"scheduler {pid} is gone")
                else:
                    self.memory[str(pid)].append([round(time.monotonic() - self._started_s, 1), size])
