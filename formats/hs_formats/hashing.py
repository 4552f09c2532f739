"""The checksums of the formats: xxh3-128 of bytes and of token ids, and the name of a row without an id."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

__all__ = ["XXH3", "content_number", "ids_bytes", "ids_xxh3", "row_content", "row_sample_id", "xxh3_hex"]

XXH3 = xxhash.xxh3_128
"""The streaming hash behind every ``*_xxh3`` field; written as 32 lower-case hex digits."""

_DIGITS = re.compile(r"[0-9a-f]{16}", re.ASCII)
_CONTENT = (
    *("chat_template_kwargs", "completion", "conversations", "input_ids", "loss_mask", "messages"),
    *("prompt", "response", "system", "text", "tools"),
)


def xxh3_hex(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """xxh3-128 of the concatenation of `pieces`."""
    digest = XXH3()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def ids_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as they lie in a part: little-endian int64."""
    return np.asarray(ids, dtype="<i8").tobytes()


def ids_xxh3(ids: Sequence[int]) -> str:
    """xxh3-128 of `ids_bytes`; the manifest's value for a part that holds just these ids."""
    return xxhash.xxh3_128_hexdigest(ids_bytes(ids))


def row_sample_id(row: Mapping[str, Any]) -> str:
    """The sample id of an input row without ``id``: a hash of its canonical JSON, independent of key order and spacing.

    The row is hashed and not its tokens, so that a resumed run need not tokenise what is done.
    """
    return "row-" + hashlib.sha256(_canonical(row)).hexdigest()[:32]


def row_content(row: Mapping[str, Any]) -> str:
    """16 hex digits that change when anything of a row changes that decides about its tokens or its loss mask."""
    return hashlib.sha256(_canonical({key: row[key] for key in _CONTENT if row.get(key) is not None})).hexdigest()[:16]


def content_number(content: str) -> int:
    """A `row_content` as a number below 2^64; 0 where it is empty or was damaged."""
    return int(content, 16) if _DIGITS.fullmatch(content) else 0


def _canonical(row: Mapping[str, Any]) -> bytes:
    text = json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")
