"""The content of `tests/golden`: one small file of every format on disk, written by the current writers."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import torch

import golden_floats
from hs_formats.control import ClientState, ControlFolder, MoverState, RunState
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.failure_ring import FailureRing
from hs_formats.fixed_record import FixedRecord
from hs_formats.hashing import ids_xxh3, xxh3_hex
from hs_formats.jsonl import AppendLog
from hs_formats.layout import part_layout
from hs_formats.ledger import Done, Failed, Intent, LedgerLine, Rejected, RunStarted
from hs_formats.manifest import ManifestLine
from hs_formats.names import PartName, Rid
from hs_formats.part import inspect_part
from hs_formats.responses import Response
from hs_formats.stored import CODECS
from hs_formats.timeline import TimelinePoint
from markers import make_marker
from part_factory import part_bytes

__all__ = [
    "CLIENT",
    "GOLDEN",
    "IDS",
    "INFO",
    "LEDGER",
    "MANIFEST",
    "MARKER",
    "MOVER",
    "NAME",
    "RESPONSES",
    "RUN",
    "STATES",
    "TIMELINE",
    "build",
]

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

RUN_ID = "0000abcd"
NAME = PartName(Rid(RUN_ID, 1, 0), 2, 5, 5, 0)
IDS = [11, 12, 151_643]
# Exact in bfloat16, with the signs of zero, a subnormal and something beyond float16's range.
STATES = torch.tensor([[[1.0, -2.5], [0.0, -0.0], [70144.0, 2.0**-130]]] * 3).to(torch.bfloat16)

MARKER = make_marker(
    pid=4242,
    tp_size=2,
    attn_tp_size=2,
    writers="all",
    expected_ranks=[0, 1],
    boundaries=[2, 4],
    hidden_size=2,
    settings={"disable_radix_cache": True},
)
MOVER = MoverState(
    pid=77,
    mover_id="host-dev-shm-sglang_hs",
    state="holding",
    reason="destination full",
    dst="/data",
    heartbeat_s=1234.5,
    last_progress_s=1230.25,
    capacity_bytes=1 << 30,
    reserve_bytes=1 << 20,
    used_bytes=5 << 20,
    limit_bytes=800 << 20,
    low_bytes=600 << 20,
    backlog_parts=3,
    backlog_bytes=3000,
    in_bytes_per_s=1.5,
    out_bytes_per_s=0.0,
    codec="zstd",
    high=0.8,
    low=0.6,
    drain_s=12.5,
    left_alone_parts=1,
)
CLIENT = ClientState(run=RUN_ID, pid=78, heartbeat_s=1234.0, promised_bytes=1 << 33, waiting="for the mover")
RUN = RunState(run=RUN_ID, dataset="prompts", pid=78, dst="/data")
INFO = DatasetInfo(
    model="/models/tiny",
    config_hash="c0ffee",
    num_layers=8,
    boundaries=[2, 4],
    dtype="bfloat16",
    hidden_size=2,
    tokenizer="/models/tiny",
    tokenizer_hash="beef",
    template_hash="feed",
    template_arguments="{}",
    train_on="all",
    generation='{"max_new_tokens":8,"regenerate":"all","seed":1,"stop":["ü"],"temperature":0.5,"top_p":1.0}',
    capture={"writers": "first", "capture_mode": "plugin"},
)
_PART = part_bytes(NAME, IDS, STATES, boundaries=INFO.boundaries)
_STORED = b"".join(CODECS["zstd"].encode([_PART], len(_PART)))
_BEFORE = PartName(NAME.rid, 0, 2, 5, 0)
MANIFEST = [
    ManifestLine(
        part=str(NAME),
        status="stored",
        path=DatasetPaths(Path()).stored_name(NAME, ".pt.zst"),
        raw_bytes=len(_PART),
        stored_bytes=len(_STORED),
        codec="zstd",
        xxh3=xxh3_hex([_PART]),
        rows_xxh3="00112233445566778899aabbccddeeff",
        ids_xxh3=ids_xxh3(IDS),
        expected_ranks=[0],
        stored_at="2026-01-02T03:04:05Z",
    ),
    ManifestLine(
        part=str(_BEFORE),
        status="quarantined",
        path=f"quarantine/{_BEFORE}",
        raw_bytes=100,
        stored_bytes=100,
        codec="none",
        expected_ranks=[0],
        reason="the zip directory is damaged",
    ),
    ManifestLine(
        part=str(PartName(Rid(RUN_ID, 2, 0), 0, 5, 5, 1)),
        status="equal",
        path="",
        raw_bytes=100,
        stored_bytes=0,
        codec="",
        xxh3="ff" * 16,
        rows_xxh3="ee" * 16,
        ids_xxh3="dd" * 16,
        writers="all",
        expected_ranks=[0, 1],
        flags=["constant"],
    ),
]
TIMELINE = [
    TimelinePoint(at="2026-01-02T03:04:05.000+00:00", run_s=0.0),
    TimelinePoint(
        at="2026-01-02T03:04:07.000+00:00",
        run_s=2.0,
        done=2,
        failed=1,
        rejected=1,
        retried=1,
        sent=5,
        answered=4,
        tokens=10,
        raw_bytes=2000,
        stored_bytes=1500,
        in_flight=1,
        to_store=1,
        used_bytes=5 << 20,
        limit_bytes=800 << 20,
        p50_s=0.25,
        p95_s=0.5,
        waited_s={"server": 1.5, "scratch": 0.25},
        exit_code=4,
        error="the server is gone",
    ),
]
LEDGER: list[LedgerLine] = [
    RunStarted(
        run=RUN_ID,
        started_at="2026-01-02T03:04:05Z",
        inputs=["prompts.jsonl"],
        servers=["http://127.0.0.1:8000"],
        version="0.1.0",
    ),
    Intent(
        sample_id="chat-1",
        rid=str(NAME.rid),
        n=5,
        ids_xxh3="aa" * 16,
        mask=[(1, 3), (4, 5)],
        row="p.jsonl:2",
        cut_from=9,
    ),
    Intent(
        sample_id="chat-1#v2",
        rid="hs-0000abcd-00000002-00",
        n=6,
        ids_xxh3="bb" * 16,
        mask=[(3, 6)],
        row="p.jsonl:2",
        answers=["length"],
    ),
    Done(sample_id="chat-1", rid=str(NAME.rid), finish_reason="length", prompt_tokens=5, cached_tokens=0),
    Done(sample_id="chat-2", rid="hs-0000abcc-00000002-01", adopted=True),
    Failed(sample_id="chat-3", rid="hs-0000abcd-00000003-00", kind="silent", reason="hook silent"),
    Rejected(sample_id="", row="p.jsonl:9", reason="not JSON"),
]


RESPONSES = [
    Response(
        sample_id="chat-1",
        variant=2,
        turn=1,
        prompt_tokens=3,
        prompt_xxh3=ids_xxh3(IDS),
        asked=8,
        tokens=2,
        finish_reason="stop",
        settings="00112233aabbccdd",
        config_hash="c0ffee",
        output_ids=[17, 2],
        matched=2,
        rid="hsgen-0000abcd-0000000007",
        server="http://127.0.0.1:8000",
        seconds=0.25,
        at="2026-01-02T03:04:05.678+00:00",
    ),
    Response(
        sample_id="chat-2",
        prompt_tokens=3,
        prompt_xxh3=ids_xxh3(IDS),
        asked=1,
        tokens=1,
        finish_reason="length",
        settings="00112233aabbccdd",
        config_hash="c0ffee",
        output_ids=[18],
    ),
]


def build() -> Mapping[str, bytes]:
    """File name → content."""
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder))
        files = {path.name: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}
    return {**files, **golden_floats.files(), str(NAME): _PART, f"{NAME}.zst": _STORED, f"{NAME}.hsz": _hsz()}


def _hsz() -> bytes:
    info = inspect_part(io.BytesIO(_PART), NAME)
    return b"".join(CODECS["default"].encode([_PART], len(_PART), layout=part_layout(info, len(_PART))))


def _write(folder: Path) -> None:
    control = ControlFolder(folder / "scratch")
    control.create()
    control.hold_marker(MARKER).release()
    with FixedRecord(control.mover_file) as mover:
        mover.write(asdict(MOVER) | {"state": "moving", "reason": ""})
        mover.write(asdict(MOVER))
    with FixedRecord(folder / "client.json") as client:
        client.write(asdict(CLIENT))
    control.register_run(RUN)
    control._run_file(control.runs, RUN.run).rename(folder / "run.json")
    with mock.patch.object(os, "urandom", bytes):
        ring = FailureRing(control.failure_path(4242, 0), slots=3)
    for number in range(5):
        ring.record(f"hs-0000abcd-{number:08d}-00", "no space left on device")
    ring.close()
    DatasetPaths(folder).write_info(INFO)
    with AppendLog(folder / "manifest.jsonl") as manifest:
        manifest.append(MANIFEST)
    with AppendLog(folder / "ledger.jsonl") as ledger:
        ledger.append(LEDGER)
    with AppendLog(folder / "timeline.jsonl") as timeline:
        timeline.append(TIMELINE)
    with AppendLog(folder / "responses.jsonl") as responses:
        responses.append(RESPONSES)
