"""An `.hsz` decoder made from docs/formats/codecs.md, with none of the project's code, which tests must not trust."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import xxhash
import zstandard

__all__ = ["unhsz"]

_ITEMSIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "float8_e4m3fn": 1, "float8_e5m2": 1}


def unhsz(data: bytes) -> bytes:
    """The original; ValueError for whatever is wrong."""
    try:
        return _original(data)
    except (IndexError, KeyError, StopIteration, TypeError, struct.error, zstandard.ZstdError) as error:
        raise ValueError(f"hsz: {error!r}") from error


def _original(data: bytes) -> bytes:
    head, index, frames = _split(data)
    _require(head == f"hsz 1 {index['codec']}\n".encode().ljust(16), "head")
    original = bytearray()
    contents = iter(frames)
    for segment in index["segments"]:
        _require(segment["start"] == len(original), "start of a segment")
        take = [next(contents) for _ in segment["frames"]]
        if segment["kind"] == "opaque":
            original += b"".join(take)
            _require(len(original) == segment["stop"], "stop of an opaque segment")
        else:
            original += _floats(segment, take)
    _require(next(contents, None) is None, "frames beyond the index")
    _require(len(original) == index["size"], "size")
    _require(xxhash.xxh3_128_hexdigest(original) == index["xxh3"], "checksum")
    return bytes(original)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"hsz: wrong {what}")


def _split(data: bytes) -> tuple[bytes, dict[str, Any], list[bytes]]:
    payloads, contents, lengths, at = list[bytes](), list[bytes](), list[int](), 0
    while at < len(data):
        magic, size = struct.unpack_from("<II", data, at)
        if 0x184D2A50 <= magic <= 0x184D2A5F:
            payloads.append(data[at + 8 : at + 8 + size])
            at += 8 + size
            continue
        decoder = zstandard.ZstdDecompressor().decompressobj()
        contents.append(decoder.decompress(data[at:]))
        _require(decoder.eof, "end of a frame")
        lengths.append(len(data) - at - len(decoder.unused_data))
        at += lengths[-1]
    _require(at == len(data) and len(payloads) == 2, "number of skippable frames")
    head, tail = payloads
    digest, length, mark = struct.unpack("<QI4s", tail[-16:])
    _require(mark == b"hsz1" and len(tail) == length + 16, "tail")
    _require(digest == xxhash.xxh3_64_intdigest(tail[:length]), "checksum of the index")
    index = json.loads(tail[:length])
    _require([length for segment in index["segments"] for length in segment["frames"]] == lengths, "frame lengths")
    return head, index, contents


def _floats(segment: dict[str, Any], contents: list[bytes]) -> bytes:
    rows, slots, channels = segment["rows"], segment["slots"], segment["channels"]
    itemsize, exponent = _ITEMSIZES[segment["dtype"]], segment["transform"] == "exponent"
    out = np.zeros((rows, slots, channels), f"<u{itemsize}")
    frames = iter(contents)
    offsets = np.zeros((slots, channels), out.dtype)
    if exponent:
        offsets = _words(next(frames), itemsize).reshape(slots, channels)
    for first in range(0, rows, segment["group_rows"]):
        count = min(segment["group_rows"], rows - first)
        for slot in range(slots):
            planes = [next(frames) for _ in range(itemsize)]
            words = _words(b"".join(planes), itemsize)
            if exponent and itemsize > 1:
                words = _sign_back(words, 8 * itemsize)
            out[first : first + count, slot] = words.reshape(count, channels) + offsets[slot]
    return out.tobytes()


def _words(planes: bytes, itemsize: int) -> np.ndarray[Any, Any]:
    """Words from their byte planes, the most significant first."""
    apart = np.frombuffer(planes, np.uint8).reshape(itemsize, -1)
    words: np.ndarray[Any, Any] = np.ascontiguousarray(apart.T).view(f">u{itemsize}").ravel().astype(f"<u{itemsize}")
    return words


def _sign_back(words: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """EEEEEEEE S MMMMMMM… to S EEEEEEEE MMMMMMM…"""
    wide = words.astype(np.uint64)
    exponent, sign = wide >> np.uint64(bits - 8), wide >> np.uint64(bits - 9) & np.uint64(1)
    mantissa = wide & np.uint64((1 << bits - 9) - 1)
    moved: np.ndarray[Any, Any] = sign << np.uint64(bits - 1) | exponent << np.uint64(bits - 9) | mantissa
    out: np.ndarray[Any, Any] = moved.astype(words.dtype)
    return out
