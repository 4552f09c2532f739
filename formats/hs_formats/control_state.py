"""What the processes say of themselves in the control folder: each class is one kind of record.

Times are CLOCK_BOOTTIME seconds, so that a suspended or adjusted clock makes nobody look dead.

Standard library only: SGLang's scheduler processes import this module.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hs_formats.tiling import Writers

__all__ = [
    "HEARTBEAT_S",
    "STALE_S",
    "CaptureStatistics",
    "ClientState",
    "Marker",
    "MoverState",
    "RunState",
    "now_s",
]

HEARTBEAT_S = 1.0
"""Period of the mover's and the clients' heartbeats."""

STALE_S = 5.0
"""A heartbeat older than this means that its process is dead, stopped or starved."""


def now_s() -> float:
    """CLOCK_BOOTTIME, the clock of every time stamp in the control folder."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What one scheduler process of a server says at start-up: capture is armed, and this is how.

    The file is locked (flock) by its process for as long as it lives.
    """

    nonce: str
    pid: int
    rank: int
    tp_size: int
    dp_rank: int
    dp_size: int
    attn_tp_rank: int
    attn_tp_size: int
    writers: Writers
    expected_ranks: list[int]
    host: str
    port: int
    model: str
    tokenizer: str
    config_hash: str
    num_layers: int
    boundaries: list[int]
    dtype: str
    hidden_size: int
    bytes_per_token: int
    context_length: int
    chunk_size: int
    sglang_version: str
    hs_version: str
    capture_mode: str
    source_file: str = ""
    source_sha256: str = ""
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def copies(self) -> int:
        """How often each row is written to scratch."""
        return len(self.expected_ranks) if self.writers == "all" else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureStatistics:
    """``capture-<pid>-r<rank>.json``: what the capture of one scheduler process has done since its start.

    `forwards` are prefill passes with rows of ours, `graph_replays` those of them that SGLang replayed from a CUDA
    graph, `canary_forwards` those with canary requests, `layers_proved` those of the latter in which every boundary was
    seen to be what enters its layer. `failed` counts the requests given up. `ring_waits` and `ring_waited_s` are the
    scheduler's waits for room in the ring or, on a GPU, in the staging buffers. Times are CLOCK_BOOTTIME seconds.
    """

    pid: int
    rank: int
    nonce: str
    at_s: float
    forwards: int
    graph_replays: int
    rows: int
    files: int
    bytes_written: int
    failed: int
    ring_bytes: int
    ring_waits: int
    ring_waited_s: float
    canary_forwards: int = 0
    layers_proved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoverState:
    """``mover.json``: the mover's heartbeat and the limit that clients keep.

    All sizes are bytes, all times CLOCK_BOOTTIME seconds. `limit_bytes` is the fill of scratch (``used`` as the file
    system reports it) up to which requests may be granted; `state` is ``moving``, ``holding`` or ``stopping``.
    `drain_s` is how long the backlog takes at the present rate, negative where nothing is being moved;
    `left_alone_parts` counts files with a part's name and stay in scratch, because they cannot be moved or deleted.
    """

    pid: int
    mover_id: str
    state: str
    reason: str
    dst: str
    heartbeat_s: float
    last_progress_s: float
    capacity_bytes: int
    reserve_bytes: int
    used_bytes: int
    limit_bytes: int
    low_bytes: int
    backlog_parts: int
    backlog_bytes: int
    in_bytes_per_s: float
    out_bytes_per_s: float
    codec: str
    high: float
    low: float
    drain_s: float = -1.0
    left_alone_parts: int = 0

    def alive(self, at_s: float) -> bool:
        """The heartbeat is fresh and the mover does not stop."""
        return at_s - self.heartbeat_s < STALE_S and self.state != "stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """``clients/<run>.json``: the bytes a client may still cause to be written to scratch.

    A client that waits says for what, how many bytes it needs and since when: who began to wait first is served first.
    `progress`: the run as it stands, in a line for people.
    """

    run: str
    pid: int
    heartbeat_s: float
    promised_bytes: int
    waiting: str = ""
    need_bytes: int = 0
    waiting_since_s: float = 0.0
    progress: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """``runs/<run>.json``: the dataset of a run's parts, as a folder name below the mover's destination.

    `dst` is that destination, as the mover called it when the run began: parts belong nowhere else. `shard` is
    ``i/n``: which samples of its prompts the run takes. The file's modification time is the run's last sign of life.
    """

    run: str
    dataset: str
    pid: int
    shard: str = "0/1"
    dst: str = ""
