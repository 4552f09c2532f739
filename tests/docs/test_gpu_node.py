"""The figures of docs/gpu-node.md are what the code computes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from hs_client.admission import RecordCost
from hs_formats.memory import default_reserve
from hs_mover.config import MoverConfig
from hs_mover.headroom import Space, headroom
from hs_server import env
from hs_server.capture.staging import default_staging_bytes
from hs_server.profiles import find_profile
from hs_server.room_checks import SHM_BYTES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "gpu-node.md").read_text()

HIDDEN = 7168
TOKEN_BYTES = (len(find_profile("kimi-k2.5").boundaries or ()) + 1) * HIDDEN * 2
CHUNK = 8192
RANKS = 8
TOKENS_PER_S = 10_000
PROMPT = 4096
HIGH: float = inspect.signature(MoverConfig).parameters["high"].default


def row(gib: int) -> str:
    total = gib << 30
    room = headroom(
        Space(used_bytes=0, free_bytes=total, total_inodes=0, free_inodes=0),
        [],
        reserve_bytes=default_reserve(total, shared_memory_mount=True),
        high=HIGH,
        low=0.5,
    )
    fill = room.limit_bytes
    tokens = fill // (TOKEN_BYTES + 8)
    cost = RecordCost.of(writers="first", ranks=RANKS, bytes_per_token=TOKEN_BYTES, chunk_tokens=CHUNK)
    seconds = tokens / TOKENS_PER_S
    return f"| {gib} GiB | {fill / 1e9:.1f} GB | {tokens:,} | {fill // cost.record(PROMPT):,} | {seconds:.0f} |"


def test_the_table_of_shared_memory() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \d+ GiB \|", line)]
    assert rows == [row(gib) for gib in (16, 64, 128, 256)]


def test_figures_in_the_text() -> None:
    staging = default_staging_bytes(chunk_tokens=CHUNK, row_bytes=TOKEN_BYTES)
    cost = RecordCost.of(writers="first", ranks=RANKS, bytes_per_token=TOKEN_BYTES, chunk_tokens=CHUNK)
    for figure in (
        f"{TOKEN_BYTES:,}, and 8 more for the token id",
        f"takes {staging / 1e9:.2f} GB for staging at a prefill chunk of {CHUNK:,} tokens",
        f"the rings, {env.DEFAULT_RING_BYTES >> 30} GiB of page-locked",
        f"fill {64 * cost.record(PROMPT) / 1e9:.0f} GB while",
        f"10,000 tokens/s are {TOKENS_PER_S * (TOKEN_BYTES + 8) / 1e9:.2f} GB/s",
        f"one million tokens are {1e6 * (TOKEN_BYTES + 8) / 1e9:.1f} GB raw",
        f"/dev/shm is below {SHM_BYTES >> 30} GiB",
        f"at most {HIGH:.0%}".replace("%", " %"),
    ):
        assert figure in PAGE.replace("\n", " "), figure
