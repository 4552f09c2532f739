"""What ends `hs-server` beside the errors that all commands share."""

from __future__ import annotations

from hs_formats.errors import HsError

__all__ = ["LaunchInterrupted"]


class LaunchInterrupted(HsError):
    """{signal}: the server was stopped before it was ready"""

    exit_code = 130
