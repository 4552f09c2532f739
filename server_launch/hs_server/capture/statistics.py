"""Counters of one scheduler process's capture, published once a second in the control folder.

The scheduler thread only adds to integers; a daemon thread of its own reads them and writes the record, so that
publishing costs the forward pass nothing and still works while scratch is full.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from hs_formats.control import CaptureStatistics
from hs_formats.fixed_record import FixedRecord

__all__ = ["PUBLISH_S", "StatisticsPublisher"]

logger = logging.getLogger(__name__)

PUBLISH_S = 1.0


class StatisticsPublisher:
    """Writes what `read` returns to the record at `path`, every `period_s` seconds and once more when closed.

    Raises:
        OSError: the record cannot be created.
    """

    def __init__(self, path: Path, read: Callable[[], CaptureStatistics], *, period_s: float = PUBLISH_S) -> None:
        self._record = FixedRecord(path)
        self._read = read
        self._period_s = period_s
        self._stop = False
        self._wake = threading.Event()
        self._warned = False
        self._publish()
        self._thread = threading.Thread(target=self._work, name="hs-statistics", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Publish now, in the publisher's own thread."""
        self._wake.set()

    def close(self) -> None:
        """Publish a last time and end the thread."""
        self._stop = True
        self._wake.set()
        self._thread.join()
        self._record.close()

    def _work(self) -> None:
        while not self._stop:
            self._wake.wait(self._period_s)
            self._wake.clear()
            self._publish()

    def _publish(self) -> None:
        try:
            self._record.write(asdict(self._read()))
        except OSError as error:
            if not self._warned:
                logger.warning("hs-extract: the capture's statistics cannot be written: %s", error)
            self._warned = True
