"""What the capture costs in prefill and decode."""

from __future__ import annotations
