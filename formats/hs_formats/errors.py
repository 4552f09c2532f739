"""What can go wrong, one class for each exit code.

A command ends with ``error: <text>`` on standard error, what else the user should see in indented lines after it, and
with the exit code of the error's class. The docstring of a class is the template of its text; the parts bring
subclasses with templates of their own.
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
