"""What the environment asks the capture to do."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hs_formats.boundaries import parse_ids
from hs_formats.errors import FormatError
from hs_formats.names import is_nonce
from hs_formats.tiling import WRITERS, Writers
from hs_server import env
from hs_server.capture.errors import CaptureRefused

__all__ = ["CaptureSettings"]


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Parsed ``SGLANG_HS_*`` variables. None means the default for the model."""

    dump_dir: Path
    boundaries: tuple[int, ...] | None
    writers: Writers
    nonce: str
    ring_bytes: int
    staging_bytes: int | None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> CaptureSettings:
        """Read the variables.

        Raises:
            CaptureRefused: a value cannot be used; the text names the variable.
        """
        dump_dir = Path(environment[env.DUMP_DIR])
        if not dump_dir.is_absolute():
            raise CaptureRefused(f"{env.DUMP_DIR}={dump_dir} is not an absolute path")
        picked = environment.get(env.BOUNDARIES)
        try:
            boundaries = parse_ids(picked) if picked else None
        except FormatError as error:
            raise CaptureRefused(f"{env.BOUNDARIES}: {error}") from None
        writers = environment.get(env.WRITERS) or "first"
        if writers not in WRITERS:
            raise CaptureRefused(f"{env.WRITERS}={writers!r} is not one of {', '.join(WRITERS)}")
        nonce = environment.get(env.NONCE) or secrets.token_hex(8)
        if not is_nonce(nonce):
            raise CaptureRefused(f"{env.NONCE}={nonce!r} is not sixteen lower-case hex digits")
        ring_bytes = _positive(environment, env.RING_BYTES, env.DEFAULT_RING_BYTES)
        staging_bytes = _positive(environment, env.STAGING_BYTES, 1) if environment.get(env.STAGING_BYTES) else None
        return cls(dump_dir, boundaries, writers, nonce, ring_bytes, staging_bytes)


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise CaptureRefused(f"{name}={text!r} is not a positive number of bytes")
    return int(text)
