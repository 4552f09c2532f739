"""Server and mover of straw in one process: ``python -m benchmarks.sending.stub SCRATCH DST DATASET PORT``.

Every request is answered at once, and the manifest says that its record, one part, is stored: no part is written, so
that what is measured is the client. ``GET /count`` says how many requests came.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.straw import http_ok, marker, serve_until_killed
from hs_formats.control import HEARTBEAT_S, ControlFolder, MoverState, now_s
from hs_formats.dataset import DatasetPaths
from hs_formats.fixed_record import FixedRecord
from hs_formats.hashing import ids_xxh3
from hs_formats.jsonl import AppendLog
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid

__all__ = ["main"]

_FLUSH_S = 0.02
_ROOM_BYTES = 1 << 40
_MOVER_ID = "straw"


class _Asked(msgspec.Struct):
    rid: str
    input_ids: list[int]


class _Mover:
    """Says that all is well, and that what was asked for is stored."""

    def __init__(self, control: ControlFolder, paths: DatasetPaths) -> None:
        self.count = 0
        self._decoder = msgspec.json.Decoder(_Asked)
        self._lines: list[ManifestLine] = []
        self._paths = paths
        self._record = FixedRecord(control.mover_file)
        self._beat()

    def answer(self, path: bytes, body: bytes) -> bytes:
        """See `benchmarks.straw.Answer`."""
        if path == b"/count":
            return http_ok({"count": self.count})
        if path == b"/model_info":
            return http_ok({"model_path": "stub", "tokenizer_path": "none", "is_generation": True})
        if path != b"/generate":
            return http_ok({})
        asked = self._decoder.decode(body)
        n = len(asked.input_ids)
        self.count += 1
        self._lines.append(_line(asked.rid, n, ids_xxh3(asked.input_ids)))
        meta: dict[str, Any] = {"id": asked.rid, "finish_reason": {"type": "length", "length": 0}}
        return http_ok({"text": "", "meta_info": {**meta, "prompt_tokens": n, "cached_tokens": 0}})

    async def store(self) -> None:
        """Write the lines of what came, for ever."""
        log: AppendLog | None = None
        while True:
            await asyncio.sleep(_FLUSH_S)
            if self._lines:
                log = log or AppendLog(self._paths.manifest / f"{_MOVER_ID}.jsonl")
                lines, self._lines = self._lines, []
                log.append(lines)

    async def live(self) -> None:
        """Keep the heartbeat, for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self._beat()

    def _beat(self) -> None:
        state = MoverState(
            pid=0,
            mover_id=_MOVER_ID,
            state="moving",
            reason="",
            dst=str(self._paths.root.parent),
            heartbeat_s=now_s(),
            last_progress_s=now_s(),
            capacity_bytes=_ROOM_BYTES,
            reserve_bytes=0,
            used_bytes=0,
            limit_bytes=_ROOM_BYTES,
            low_bytes=_ROOM_BYTES,
            backlog_parts=0,
            backlog_bytes=0,
            in_bytes_per_s=0.0,
            out_bytes_per_s=0.0,
            codec="none",
            high=1.0,
            low=1.0,
        )
        self._record.write(asdict(state))


def _line(rid: str, n: int, ids_hash: str) -> ManifestLine:
    name = PartName(Rid.parse(rid), 0, n, n, 0)
    return ManifestLine(
        part=str(name),
        status="stored",
        path=f"data/{name.rid.run}/{name.rid.row // 2000}/{name}",
        raw_bytes=1,
        stored_bytes=1,
        codec="none",
        rows_xxh3="0" * 32,
        ids_xxh3=ids_hash,
        expected_ranks=[0],
    )


def main() -> None:
    """Serve until killed."""
    scratch, dst, dataset, port = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    control = ControlFolder(scratch)
    control.create()
    held = control.hold_marker(marker(port, "none"))
    mover = _Mover(control, DatasetPaths(dst / dataset))
    try:
        serve_until_killed(port, mover.answer, mover.store, mover.live)
    finally:
        held.release()


if __name__ == "__main__":
    main()
