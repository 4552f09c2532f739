"""`hs-server`: starts SGLang with the capture plugin armed, watches it and stops it; holds the code that runs inside."""

from __future__ import annotations
