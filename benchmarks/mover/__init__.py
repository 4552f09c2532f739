"""Case ``mover``: what moving costs, beside what people would use instead."""

from __future__ import annotations
