"""What the user sees while a dataset is being verified: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from hs_client.tally import show_bytes

__all__ = ["VerifyProgress"]

_INTERVAL_S = 10.0


class VerifyProgress:
    """Counts records as they are done.

    Args:
        total: records and files to look at.
        stream: where to write; standard error by default.
    """

    def __init__(self, total: int, *, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._total = total
        self._done = 0
        self._bytes = 0
        self._started_s = self._told_s = time.monotonic()
        self._bar: Any = None
        if self._stream.isatty() and total:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="sample", file=self._stream, dynamic_ncols=True, smoothing=0.1)

    def step(self, raw_bytes: int, found: int) -> None:
        """One more is done, of so many bytes; `found` things so far."""
        self._done += 1
        self._bytes += raw_bytes
        now_s = time.monotonic()
        rate = f"{show_bytes(self._bytes / max(1e-9, now_s - self._started_s))}/s, {found} findings"
        if self._bar is not None:
            self._bar.update(1)
            self._bar.set_postfix_str(rate, refresh=False)
        elif now_s - self._told_s >= _INTERVAL_S:
            self._told_s = now_s
            self._stream.write(f"{self._done}/{self._total} samples, {rate}\n")
            self._stream.flush()

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
