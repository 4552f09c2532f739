"""What can go wrong, one class for each exit code.

A command ends with one line on standard error, ``error: <text>``, and its class's exit code. The docstring of a class
is the template of its text; subclasses of the parts bring their own templates.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = ["FormatError", "HsError", "PreflightError", "ServerLost", "StorageError", "UsageError"]


class FormatError(ValueError):
    """Raised when a name, a control file, a part or a dataset file breaks its format; the text says where and how."""


class HsError(Exception):
    """{message}"""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: object = "", /, **fields: object) -> None:
        template = " ".join((type(self).__doc__ or "{message}").split())
        super().__init__(template.format(message=message, **fields))


class UsageError(HsError):
    """{message}"""

    exit_code = 2


class PreflightError(HsError):
    """{message}"""

    exit_code = 3


class ServerLost(HsError):
    """{message}"""

    exit_code = 4


class StorageError(HsError):
    """{message}"""

    exit_code = 5
