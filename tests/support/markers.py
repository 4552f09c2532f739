"""What a scheduler process and a part say of themselves, with values of no consequence where a test names none."""

from __future__ import annotations

from typing import Any

from hs_formats.control import Marker
from hs_formats.part import PartMeta

__all__ = ["make_marker", "make_meta"]


def make_marker(**values: Any) -> Marker:
    """The marker of one rank of one, in bfloat16; `bytes_per_token` follows from the others."""
    hidden, boundaries = values.get("hidden_size", 16), values.get("boundaries", [2, 4, 5])
    itemsize = 4 if values.get("dtype") == "float32" else 2
    known: dict[str, Any] = {
        "nonce": "0123456789abcdef",
        "pid": 1,
        "rank": 0,
        "tp_size": 1,
        "dp_rank": 0,
        "dp_size": 1,
        "attn_tp_rank": 0,
        "attn_tp_size": 1,
        "writers": "first",
        "expected_ranks": [0],
        "host": "127.0.0.1",
        "port": 8000,
        "model": "/models/tiny",
        "tokenizer": "/models/tiny",
        "config_hash": "c0ffee",
        "num_layers": 8,
        "boundaries": boundaries,
        "dtype": "bfloat16",
        "hidden_size": hidden,
        "bytes_per_token": (len(boundaries) + 1) * hidden * itemsize,
        "context_length": 2048,
        "chunk_size": 16,
        "sglang_version": "0.5.20",
        "hs_version": "0.1.0",
        "capture_mode": "plugin",
    }
    return Marker(**(known | values))


def make_meta(**values: Any) -> PartMeta:
    """What a part of one rank of one says; a test names rows, boundaries and hidden size."""
    known: dict[str, Any] = {
        "rid": "",
        "dtype": "float32",
        "model": "/models/tiny",
        "config_hash": "c0ffee",
        "tp_rank": 0,
        "tp_size": 1,
        "attn_tp_rank": 0,
        "attn_tp_size": 1,
        "dp_rank": 0,
        "dp_size": 1,
        "writers": "first",
        "expected_ranks": [0],
        "nonce": "0123456789abcdef",
        "sglang_version": "0.5.20",
        "capture_mode": "plugin",
    }
    return PartMeta(**(known | values))
