"""A capture session that writes into a folder, with batches and states made by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hs_formats.failure_ring import FailureReader, FailureRing
from hs_formats.part import PartMeta
from hs_server.capture.backends import HostBackend
from hs_server.capture.copy_path import CopyPath
from hs_server.capture.ring import HostRing
from hs_server.capture.session import CaptureSession
from hs_server.capture.writer import FailedRids, PartWriter
from markers import make_meta

__all__ = ["BOUNDARIES", "NONCE", "Capture", "H", "rid", "template"]

H = 8
BOUNDARIES = [1, 3]
NONCE = "00112233445566aa"


def rid(row: int) -> str:
    return f"hs-0123abcd-{row:08d}-00"


def template(**changes: Any) -> PartMeta:
    known = {"start": 0, "stop": 0, "n": 0, "boundaries": BOUNDARIES, "dtype": "bfloat16", "hidden_size": H}
    return make_meta(**(known | {"nonce": NONCE} | changes))


@dataclass
class Capture:
    """A session writing into `folder`."""

    folder: Path
    slots: int = 8
    block_rows: int = 4
    meta: PartMeta = field(default_factory=template)

    def __post_init__(self) -> None:
        self.ring = FailureRing(self.folder / "failed-1-r0", slots=16)
        self.failed = FailedRids(self.ring)
        self.writer = PartWriter(self.folder, self.failed, threads=2)
        ring = HostRing(self.slots, (self.block_rows, 3, H), torch.bfloat16, pinned=False)
        self.host_ring = ring
        self.session = CaptureSession(self.meta, CopyPath(ring, HostBackend(), self.writer, self.failed), self.failed)

    def failures(self) -> dict[str, str]:
        return {failure.rid: failure.reason for failure in FailureReader(self.folder / "failed-1-r0").poll()}

    def parts(self) -> dict[str, Any]:
        self.writer.close()
        return {path.name: torch.load(path, weights_only=True) for path in self.folder.glob("*.pt")}
