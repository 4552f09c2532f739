"""The two ways into SGLang, and which of them this process's capture took.

A patched installation may have the plugin as well. Then ``SGLANG_HS_MODE`` decides; where it is not set, the plugin,
which SGLang loads first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from hs_server import env
from hs_server.capture.errors import CaptureRefused

__all__ = ["MODES", "PLUGIN", "SOURCE", "Way", "claim"]

PLUGIN, SOURCE = "plugin", "source"
MODES = (PLUGIN, SOURCE)

_claimed: list[str] = []


@dataclass(frozen=True, slots=True)
class Way:
    """What the marker says of how the capture came in; `source_file` and its hash are empty for the plugin."""

    mode: str = PLUGIN
    source_file: str = ""
    source_sha256: str = ""


def claim(mode: str) -> bool:
    """Whether the capture of this process comes in by `mode`; the first one that may, may keep it.

    Raises:
        CaptureRefused: ``SGLANG_HS_MODE`` names no mode.
    """
    wanted = os.environ.get(env.MODE) or mode
    if wanted not in MODES:
        raise CaptureRefused(f"{env.MODE}={wanted!r} is not one of {', '.join(MODES)}")
    if wanted == mode and not _claimed:
        _claimed.append(mode)
    return wanted == mode and _claimed == [mode]
