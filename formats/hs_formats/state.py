"""Where the commands remember what they have started, for each user of a machine. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

__all__ = ["state_folder"]


def state_folder(environment: Mapping[str, str]) -> Path:
    """`$HS_STATE_DIR`, else `hs-extract` under the user's XDG state folder."""
    if own := environment.get("HS_STATE_DIR"):
        return Path(own)
    base = environment.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "hs-extract"
