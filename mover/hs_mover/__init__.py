"""`hs-mover`: compresses part files out of the tmpfs scratch folder and puts them durably where they belong."""

from __future__ import annotations
