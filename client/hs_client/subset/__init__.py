"""`hs-client split` and `hs-client merge`: new datasets of samples that are there, their payload linked, not copied."""

from __future__ import annotations
