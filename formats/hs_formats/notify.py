"""Tells systemd that a service is ready, what it does and that it lives (sd_notify), where systemd asked for it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]

_log = logging.getLogger(__name__)


class Notifier:
    """Does nothing where the environment has no ``NOTIFY_SOCKET``. Never raises: all works without systemd."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._failed = False
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]

    def ready(self) -> None:
        """The service does what it is for."""
        self._send("READY=1")

    def alive(self, status: str) -> None:
        """Also a sign of life for ``WatchdogSec``; `status` is shown by ``systemctl status``."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    def stopping(self) -> None:
        """What is in hand is being finished."""
        self._send("STOPPING=1")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as file:
                file.settimeout(1.0)
                file.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                _log.warning("cannot notify systemd at %s: %s", self._address.replace("\0", "@"), error)
            self._failed = True
