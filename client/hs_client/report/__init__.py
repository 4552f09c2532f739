"""`hs-client report`: a dataset and its runs on one page."""

from __future__ import annotations
