from __future__ import annotations

import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings, strategies as st

from hs_formats.codec_names import CODEC_NAMES, DEFAULT_CODEC
from hs_formats.errors import FormatError
from hs_formats.stored import CODECS, codec_of, read_stored, stored_codec
from hs_formats.zstd import MAX_BLOCK_BYTES, compress_blocks, decompress, decompress_blocks, huffman_frame

CONTENT = b"".join(struct.pack("<II", value, value % 7) for value in range(4000))
SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"skip"


def _compress(data: bytes, block: int = 1000) -> bytes:
    return b"".join(compress_blocks([data[at : at + block] for at in range(0, len(data), block)], len(data)))


STORED = _compress(CONTENT)


@given(st.binary(max_size=3000), st.integers(1, 999))
def test_round_trip_in_any_blocks(data: bytes, block: int) -> None:
    stored = _compress(data, block)
    assert decompress(stored) == data
    assert decompress(memoryview(stored)) == data
    assert zstandard.ZstdDecompressor().decompress(stored) == data
    parameters = zstandard.get_frame_parameters(stored)
    assert parameters.content_size == len(data)
    assert parameters.has_checksum


def test_the_command_line_tool_agrees(tmp_path: Path) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("no zstd command here")
    for name, content in (("full", CONTENT), ("empty", b"")):
        path = tmp_path / f"{name}.pt.zst"
        path.write_bytes(_compress(content))
        subprocess.run(["zstd", "-q", "-t", str(path)], check=True)
        subprocess.run(["zstd", "-q", "-d", str(path), "-o", str(tmp_path / name)], check=True)
        assert (tmp_path / name).read_bytes() == content
        subprocess.run(["zstd", "-q", "-f", str(tmp_path / name), "-o", str(path)], check=True)
        assert read_stored(path) == content


def _in_blocks(data: bytes) -> bytes:
    size, blocks = decompress_blocks(lambda at, count: data[at : at + count], len(data))
    content = b"".join(blocks)
    assert len(content) == size
    return content


DECODERS = pytest.mark.parametrize("decode", [decompress, _in_blocks])


@DECODERS
def test_cut_frames(decode: Callable[[bytes], bytes]) -> None:
    assert decode(STORED) == CONTENT
    for size in range(len(STORED)):
        with pytest.raises(FormatError):
            decode(STORED[:size])


def test_blocks_are_bounded() -> None:
    bomb = zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1 << 30))
    size, blocks = decompress_blocks(lambda at, count: bomb[at : at + count], len(bomb))
    assert size == 1 << 30
    assert len(next(blocks)) <= 128 << 20
    with pytest.raises(FormatError, match="more than 1000"):
        decompress(bomb, limit_bytes=1000)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a zstd frame"),
        (SKIPPABLE, "not a zstd frame"),
        (SKIPPABLE + STORED, "not a zstd frame"),
        (STORED + b"\0", "follow"),
        (STORED + SKIPPABLE, "follow"),
        (STORED + STORED, "follow"),
        (STORED[:4], "not a whole"),
        (zstandard.ZstdCompressor(write_checksum=False).compress(CONTENT), "no checksum"),
        (zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(CONTENT), "its size"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 30, "not a whole|zstd"),
    ],
)
@DECODERS
def test_other_than_one_whole_frame(decode: Callable[[bytes], bytes], data: bytes, says: str) -> None:
    with pytest.raises(FormatError, match=says):
        decode(data)


@DECODERS
def test_a_flipped_bit_anywhere_is_found(decode: Callable[[bytes], bytes]) -> None:
    stored = _compress(CONTENT[:600])
    for at in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[at] ^= 1 << bit
            try:
                assert decode(bytes(damaged)) == CONTENT[:600]  # a reserved bit at most
            except FormatError:
                continue


@settings(max_examples=300)
@given(st.binary(max_size=100), st.booleans())
def test_noise(data: bytes, framed: bool) -> None:
    with pytest.raises(FormatError):
        decompress((zstandard.FRAME_HEADER if framed else b"") + data[:8])


@pytest.mark.parametrize("size", [0, 99, 101])
def test_the_announced_size_must_come(size: int) -> None:
    with pytest.raises(FormatError, match="announced"):
        list(compress_blocks([b"x" * 60, b"x" * 40], size))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 3 * MAX_BLOCK_BYTES), st.integers(1, 255), st.integers(0, 1000))
def test_a_plane_comes_back_from_its_frame(size: int, values: int, seed: int) -> None:
    plane = np.random.default_rng(seed).binomial(values, 0.5, size).astype(np.uint8).data
    frame = huffman_frame(plane)
    assert zstandard.ZstdDecompressor().decompress(frame) == plane
    parameters = zstandard.get_frame_parameters(frame)
    assert (parameters.content_size, parameters.has_checksum) == (size, True)


def test_a_plane_is_huffman_coded_and_not_searched_for_matches() -> None:
    """Bytes of 4 bits of entropy, a hundred times the same thousand, take 4 bits each: no more and no less."""
    plane = np.tile(np.random.default_rng(0).integers(0, 16, 1000, np.uint8), 100)
    assert len(huffman_frame(plane.data)) == pytest.approx(len(plane) / 2, rel=0.01)
    assert len(zstandard.ZstdCompressor(level=1).compress(plane.data)) < len(plane) / 20  # who looks finds the copies


def test_many_threads_at_once() -> None:
    contents = [os.urandom(3000) * 30 for _ in range(8)]
    results: dict[int, bool] = {}

    def work(number: int) -> None:
        results[number] = all(decompress(_compress(contents[number], 5000)) == contents[number] for _ in range(20))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(8), True)


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_gives_the_bytes_back_and_is_known_by_its_suffix(tmp_path: Path, name: str) -> None:
    codec = CODECS[name]
    path = tmp_path / f"x{codec.suffix}"
    path.write_bytes(b"".join(codec.encode([CONTENT[:100], memoryview(CONTENT)[100:]], len(CONTENT))))
    assert codec_of(path.name).suffix == codec.suffix
    assert stored_codec(path) == name
    assert read_stored(path) == CONTENT


def test_the_names_of_the_codecs() -> None:
    assert tuple(CODECS) == CODEC_NAMES
    assert DEFAULT_CODEC in CODECS
    assert all(codec.name == name for name, codec in CODECS.items())


def test_damage_is_reported_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pt.zst"
    path.write_bytes(STORED[:-3])
    with pytest.raises(FormatError, match=str(path)):
        read_stored(path)
    with pytest.raises(FormatError, match="suffix of no codec"):
        codec_of("x.pt.gz")
    with pytest.raises(FileNotFoundError):
        read_stored(tmp_path / "gone.pt")
