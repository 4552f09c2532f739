"""`hs-server`: starts SGLang with the capture plugin armed, watches it and stops it."""

from __future__ import annotations
