"""Case ``peers``: hidden states on disk a second, beside the other ways to get them."""

from __future__ import annotations
