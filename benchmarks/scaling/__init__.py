"""Case ``scaling``: how time and memory grow with rows, parts, threads and clients."""

from __future__ import annotations
