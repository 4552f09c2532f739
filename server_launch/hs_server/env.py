"""Environment variables between the launcher and the capture code inside SGLang. Standard library only."""

from __future__ import annotations

__all__ = [
    "BOUNDARIES",
    "DEFAULT_RING_BYTES",
    "DUMP_DIR",
    "MODE",
    "NONCE",
    "RING_BYTES",
    "STAGING_BYTES",
    "WRITERS",
]

DUMP_DIR = "SGLANG_HS_DUMP_DIR"
"""Scratch folder of the part files. Unset or empty: the capture is dormant, nothing is imported or registered."""

MODE = "SGLANG_HS_MODE"
"""How the capture comes in: plugin or source (the lines of `hs-server patch`). Unset: the plugin where it is loaded."""

BOUNDARIES = "SGLANG_HS_BOUNDARIES"
"""Comma-separated boundaries; unset: the default pick for the model's depth."""

WRITERS = "SGLANG_HS_WRITERS"
"""Which TP ranks write: first (default), spread or all."""

NONCE = "SGLANG_HS_NONCE"
"""Sixteen hex digits that name the launch; the launcher waits for markers that carry it. Unset: drawn at random."""

RING_BYTES = "SGLANG_HS_RING_BYTES"
"""Host memory that captured rows may occupy between the forward pass and their file."""

DEFAULT_RING_BYTES = 2 << 30

STAGING_BYTES = "SGLANG_HS_STAGING_BYTES"
"""Device memory for captured rows that have not left for the host. Unset: room for two prefill batches, 1 GiB at
most, so that the scheduler need not wait for a transfer."""
