"""The one error of this package: bytes or a name on disk that do not follow the format."""

from __future__ import annotations

__all__ = ["FormatError"]


class FormatError(ValueError):
    """Raised when a name, a control file, a part or a dataset file breaks its format; the text says where and how."""
