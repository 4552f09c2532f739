"""Case ``chaos``: a producer that is faster than the mover, for a long time."""

from __future__ import annotations
