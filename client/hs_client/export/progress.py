"""What the user sees while an export is written: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from hs_client.tally import show_bytes

__all__ = ["ExportProgress"]


class ExportProgress:
    """Counts samples and bytes on standard error."""

    def __init__(self, total: int, *, interval_s: float, stream: TextIO | None = None) -> None:
        self._total = total
        self._interval_s = interval_s
        self._stream = stream if stream is not None else sys.stderr
        self._started_s = self._shown_s = time.monotonic()
        self._bar: Any = None
        self.samples = 0
        self.bytes = 0
        if self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="sample", file=self._stream, leave=False)

    def add(self, samples: int, size_bytes: int) -> None:
        """Some more are in place."""
        self.samples += samples
        self.bytes += size_bytes
        if self._bar is not None:
            self._bar.update(samples)
            return
        now_s = time.monotonic()
        if now_s - self._shown_s >= self._interval_s:
            self._shown_s = now_s
            rate = self.bytes / (now_s - self._started_s)
            self._stream.write(
                f"exported {self.samples:,} of {self._total:,} samples, {show_bytes(self.bytes)},"
                f" {show_bytes(rate)}/s\n"
            )
            self._stream.flush()

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.close()
