"""What is compared: ours, general compressors, libraries that know floats. Each to bytes and back, on one thread."""

from __future__ import annotations

import importlib
import importlib.metadata
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from hs_formats.hsz_decode import HszFile
from hs_formats.layout import Floats, Layout
from hs_formats.stored import CODECS

__all__ = ["Candidate", "Shape", "candidates"]

Shape = tuple[int, int, int]
"""Rows, slots and channels of bfloat16 states."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to store states.

    `prepare` makes what `encode` takes from the bytes of a tensor; it is not timed. `decode` takes what `encode` gave
    and returns something that `bytes` can be made of.
    """

    name: str
    package: str
    prepare: Callable[[bytes, Shape], Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    @property
    def version(self) -> str:
        """Of the package; "" for ours and the standard library's."""
        return importlib.metadata.version(self.package) if self.package else ""


def candidates() -> tuple[list[Candidate], dict[str, str]]:
    """All that can be run here, and why the others cannot, by name."""
    found = [_ours("default"), _ours("fast"), _zstd(1), _zstd(3), _gzip()]
    missing: dict[str, str] = {}
    for name, make in (("blosc2", _blosc2), ("zipnn", _zipnn), ("openzl", _openzl)):
        try:
            found.append(make())
        except ImportError as error:
            missing[name] = str(error)
    return found, missing


def _ours(codec: str) -> Candidate:
    buffer = bytearray()  # the caller's own, and the same each time

    def prepare(data: bytes, shape: Shape) -> tuple[bytes, Layout]:
        return data, Layout(len(data), (Floats(0, "bfloat16", *shape),))

    def encode(prepared: tuple[bytes, Layout]) -> list[bytes | memoryview]:
        data, layout = prepared
        view = memoryview(data)
        pieces = (view[start : start + count] for start, count, _ in layout.pieces())
        return list(CODECS[codec].encode(pieces, len(data), layout=layout))

    def decode(pieces: list[bytes | memoryview]) -> bytearray:
        opened = HszFile.of_bytes(b"".join(pieces))
        if len(buffer) != opened.size:
            buffer[:] = bytes(opened.size)
        opened.read_all(buffer)
        return buffer

    return Candidate(codec, "", prepare, encode, decode)


def _plain(data: bytes, shape: Shape) -> bytes:
    del shape
    return data


def _zstd(level: int) -> Candidate:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
    decompressor = zstandard.ZstdDecompressor()
    return Candidate(f"zstd -{level}", "zstandard", _plain, compressor.compress, decompressor.decompress)


def _gzip() -> Candidate:
    return Candidate("gzip -6", "", _plain, lambda data: zlib.compress(data, 6), zlib.decompress)


def _blosc2() -> Candidate:
    blosc2: Any = importlib.import_module("blosc2")
    options = {
        "codec": blosc2.Codec.ZSTD,
        "clevel": 1,
        "filters": [blosc2.Filter.SHUFFLE],
        "typesize": 2,
        "nthreads": 1,
    }
    return Candidate(
        "blosc2 shuffle, zstd 1",
        "blosc2",
        _plain,
        lambda data: blosc2.compress2(data, **options),
        lambda stored: blosc2.decompress2(stored, nthreads=1),
    )


def _zipnn() -> Candidate:
    zipnn: Any = importlib.import_module("zipnn")
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1)
    # It writes into its input, so it gets a copy of its own each time.
    return Candidate("zipnn", "zipnn", lambda data, _: bytearray(data), codec.compress, codec.decompress)


def _openzl() -> Candidate:
    zl: Any = importlib.import_module("openzl.ext")
    compressor = zl.Compressor()
    compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
    node = zl.nodes.BFloat16Deconstruct()
    graph = node(compressor, sign_frac=zl.graphs.Store(), exponent=zl.graphs.Huffman())
    compressor.select_starting_graph(graph)

    def encode(words: Any) -> Any:
        context = zl.CCtx()
        context.ref_compressor(compressor)
        context.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
        return context.compress([zl.Input(zl.Type.Numeric, words)])

    return Candidate(
        "openzl exponents, huffman",
        "openzl",
        lambda data, _: np.frombuffer(data, np.uint16),
        encode,
        lambda stored: zl.DCtx().decompress(stored)[0].content.as_bytes(),
    )
