"""Names of the codecs, for command lines, which must not import what the codecs need."""

from __future__ import annotations

__all__ = ["CODEC_NAMES", "DEFAULT_CODEC"]

CODEC_NAMES = ("default", "fast", "zstd", "none")
"""From the smallest files to the least work; `hs_formats.stored` has them."""

DEFAULT_CODEC = "default"
"""What the mover stores with unless it is told otherwise."""
