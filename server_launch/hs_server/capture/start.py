"""Start of the capture in one scheduler process, right after the model's weights were loaded.

At that point nothing is captured in a CUDA graph yet and the KV pool is not sized: whatever the capture needs is taken
here, and whatever speaks against it stops the launch here.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from typing import Any

from hs_formats.boundaries import boundary_table, resolve_boundaries
from hs_formats.container import DTYPES
from hs_formats.control import CaptureStatistics, ControlFolder, HeldMarker, Marker, now_s
from hs_formats.errors import FormatError
from hs_formats.failure_ring import FailureRing
from hs_formats.names import MAX_RANK
from hs_formats.part import PartMeta
from hs_server import env
from hs_server.capture.backends import backend_for
from hs_server.capture.copy_path import CopyPath, ring_shape
from hs_server.capture.errors import CaptureRefused
from hs_server.capture.families import arm_model, check_reduction, decoder_layers
from hs_server.capture.guards import check_settings
from hs_server.capture.identity import model_hash
from hs_server.capture.layer_probe import LayerProbe
from hs_server.capture.mode import Way
from hs_server.capture.ring import HostRing
from hs_server.capture.session import CaptureSession
from hs_server.capture.settings import CaptureSettings
from hs_server.capture.staging import default_staging_bytes
from hs_server.capture.statistics import StatisticsPublisher
from hs_server.capture.writer import FailedRids, PartWriter

__all__ = ["start_capture"]

logger = logging.getLogger(__name__)

_WRITER_THREADS = 2

_held: list[HeldMarker] = []
"""Keeps the marker locked for the life of the process."""


def start_capture(
    runner: Any, settings: CaptureSettings, *, model: Any = None, way: Way | None = None
) -> CaptureSession:
    """Arm the model of a ``ModelRunner`` and leave this process's marker.

    Args:
        runner: the ``ModelRunner``.
        settings: what the environment asks for.
        model: the model, where the runner does not have it yet because it is still being loaded.
        way: how the capture came in, for the marker; None: as the plugin.

    Raises:
        CaptureRefused: states would be wrong or missing; says why and what to do.
    """
    model = runner.model if model is None else model
    way = way or Way()
    check_settings(runner.server_args, mode=way.mode)
    meta, marker, table = _describe(runner, settings, way)
    check_reduction(model, runner.server_args, tp_size=meta.tp_size, sglang_version=meta.sglang_version)
    control = ControlFolder(settings.dump_dir)
    try:
        control.create()
        ring = FailureRing(control.failure_path(os.getpid(), meta.tp_rank))
    except (OSError, FormatError) as error:
        raise CaptureRefused(f"scratch {settings.dump_dir} cannot be used: {error}") from error
    arm_model(model, tuple(meta.boundaries))
    failed = FailedRids(ring)
    writer = PartWriter(settings.dump_dir, failed, threads=_WRITER_THREADS)
    copy_path = _make_copy_path(runner, settings, meta, writer, failed)
    probe = LayerProbe(decoder_layers(model), meta.boundaries)
    session = CaptureSession(meta, copy_path, failed, probe=probe)
    try:
        _publish_statistics(control, marker, session, copy_path, writer, failed)
    except OSError as error:
        raise CaptureRefused(f"scratch {settings.dump_dir} cannot be used: {error}") from error
    _held.append(control.hold_marker(marker))
    for line in table if meta.tp_rank == 0 else ():
        logger.info("hs-extract: %s", line)
    return session


def _publish_statistics(
    control: ControlFolder,
    marker: Marker,
    session: CaptureSession,
    copy_path: CopyPath,
    writer: PartWriter,
    failed: FailedRids,
) -> None:
    ring = copy_path.ring

    def read() -> CaptureStatistics:
        return CaptureStatistics(
            pid=marker.pid,
            rank=marker.rank,
            nonce=marker.nonce,
            at_s=now_s(),
            forwards=session.forwards,
            graph_replays=session.graph_replays,
            rows=session.rows,
            files=writer.files,
            bytes_written=writer.bytes_written,
            failed=failed.count,
            ring_bytes=ring.bytes,
            ring_waits=copy_path.waits,
            ring_waited_s=copy_path.waited_s,
            canary_forwards=session.canary_forwards,
            layers_proved=session.layers_proved,
        )

    publisher = StatisticsPublisher(control.statistics_path(marker.pid, marker.rank), read)
    session.after_canary = publisher.nudge


def _describe(runner: Any, settings: CaptureSettings, way: Way) -> tuple[PartMeta, Marker, list[str]]:
    args, model_config = runner.server_args, runner.model_config
    text_config = model_config.hf_text_config
    num_layers, hidden_size = int(text_config.num_hidden_layers), int(text_config.hidden_size)
    try:
        boundaries = resolve_boundaries(num_layers, boundaries=settings.boundaries)
    except FormatError as error:
        raise CaptureRefused(str(error)) from None
    dtype = str(model_config.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise CaptureRefused(f"states of dtype {dtype} are not supported; launch with --dtype bfloat16")
    ranks = _ranks(runner)
    if ranks["tp_size"] > MAX_RANK + 1:
        raise CaptureRefused(f"TP size {ranks['tp_size']} is more than part names can tell apart ({MAX_RANK + 1})")
    expected = [0] if settings.writers == "first" else list(range(ranks["attn_tp_size"]))
    version = importlib.metadata.version("sglang")
    shared: dict[str, Any] = {
        "boundaries": list(boundaries),
        "dtype": dtype,
        "hidden_size": hidden_size,
        "model": str(args.model_path),
        "config_hash": model_hash(model_config.hf_config, str(args.model_path)),
        "writers": settings.writers,
        "expected_ranks": expected,
        "sglang_version": version,
        "capture_mode": way.mode,
        "nonce": settings.nonce,
        **{key: value for key, value in ranks.items() if key != "tp_rank"},
    }
    meta = PartMeta(rid="", start=0, stop=0, n=0, tp_rank=ranks["tp_rank"], **shared)
    marker = Marker(
        pid=os.getpid(),
        rank=ranks["tp_rank"],
        host=str(args.host),
        port=int(args.port),
        tokenizer=str(args.tokenizer_path or args.model_path),
        num_layers=num_layers,
        bytes_per_token=(len(boundaries) + 1) * hidden_size * DTYPES[dtype].itemsize,
        context_length=int(model_config.context_len),
        chunk_size=_chunk_size(args),
        hs_version=importlib.metadata.version("hs-extract"),
        source_file=way.source_file,
        source_sha256=way.source_sha256,
        settings={
            name: getattr(args, name, None)
            for name in ("disable_cuda_graph", "disable_radix_cache", "disable_overlap_schedule", "max_prefill_tokens")
        },
        **shared,
    )
    return meta, marker, boundary_table(boundaries, num_layers)


def _make_copy_path(
    runner: Any, settings: CaptureSettings, meta: PartMeta, writer: PartWriter, failed: FailedRids
) -> CopyPath:
    import torch

    dtype = getattr(torch, meta.dtype)
    row_bytes = meta.slots * meta.hidden_size * dtype.itemsize
    slots, block_rows = ring_shape(settings.ring_bytes, row_bytes)
    staging_bytes = settings.staging_bytes or default_staging_bytes(
        chunk_tokens=_chunk_size(runner.server_args), row_bytes=row_bytes
    )
    device = torch.device(runner.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        ring = HostRing(slots, (block_rows, meta.slots, meta.hidden_size), dtype, pinned=device.type == "cuda")
        return CopyPath(ring, backend_for(ring, device, staging_bytes=staging_bytes), writer, failed)
    except (RuntimeError, ValueError) as error:
        raise CaptureRefused(
            f"the ring of {settings.ring_bytes} bytes or its staging buffers cannot be had: {error}; "
            f"set {env.RING_BYTES} or {env.STAGING_BYTES} lower"
        ) from error


def _chunk_size(args: Any) -> int:
    """Largest number of tokens of one request in one forward pass; 0 when prefill is not chunked."""
    size = args.chunked_prefill_size
    return int(size) if size and size > 0 else 0


def _ranks(runner: Any) -> dict[str, int]:
    """Ranks and sizes of this process: the runner's own, in SGLang 0.5.20 its ``ps``, in 0.5.23 the process's."""
    state = getattr(runner, "ps", runner)
    if not hasattr(state, "tp_rank"):
        from sglang.srt.runtime_context import get_parallel

        state = get_parallel()
    tp_rank, tp_size = int(state.tp_rank), int(state.tp_size)
    return {
        "tp_rank": tp_rank,
        "tp_size": tp_size,
        "attn_tp_rank": int(getattr(state, "attn_tp_rank", tp_rank)),
        "attn_tp_size": int(getattr(state, "attn_tp_size", tp_size)),
        "dp_rank": int(getattr(state, "dp_rank", 0) or 0),
        "dp_size": int(getattr(state, "dp_size", 1) or 1),
    }
