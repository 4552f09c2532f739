"""`hs-client verify`: a dataset's books, its bytes and its values, checked against each other."""

from __future__ import annotations
