"""Case ``onpolicy``: answers generated and captured on one server, beside the ways with two."""

from __future__ import annotations
