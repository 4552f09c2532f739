"""Why a capture does not start."""

from __future__ import annotations

__all__ = ["REFUSAL_PREFIX", "CaptureRefused"]

REFUSAL_PREFIX = "hs-extract refuses to capture: "
"""Marks the line of the server's log that the launcher shows."""


class CaptureRefused(RuntimeError):
    """Raised at start-up, with reason and remedy, where captured states would be wrong or missing."""

    def __init__(self, reason: str) -> None:
        super().__init__(REFUSAL_PREFIX + reason)
