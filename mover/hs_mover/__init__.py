"""`hs-mover`: compresses part files out of the tmpfs scratch folder and stores them durably."""

from __future__ import annotations
