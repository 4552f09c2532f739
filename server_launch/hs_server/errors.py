"""What can go wrong for a user of `hs-server`: one class for each exit code.

The text of an error is a whole message for the terminal: what is wrong, and after a newline what to do about it.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["HsServerError", "InterruptedLaunchError", "RefusedError", "ServerLostError", "UsageError"]


class HsServerError(Exception):
    """Root of the errors that end `hs-server` with a message instead of a traceback."""

    exit_code: ClassVar[int] = 1


class UsageError(HsServerError):
    """The command line asks for something impossible or ambiguous."""

    exit_code = 2


class RefusedError(HsServerError):
    """A check failed: before the launch, or because the capture did not prove that it is armed."""

    exit_code = 3


class ServerLostError(HsServerError):
    """SGLang ended, did not become ready in time, or is not running."""

    exit_code = 4


class InterruptedLaunchError(HsServerError):
    """A signal ended the launch before the server was ready; the server was stopped."""

    exit_code = 130
