"""Size and speed of the codecs."""

from __future__ import annotations
