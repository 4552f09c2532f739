from __future__ import annotations

import math
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
import xxhash
import zstandard
from hypothesis import given, settings, strategies as st

from hs_formats import layout as layouts, planes
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.hsz_decode import HszFile
from hs_formats.hsz_encode import Facts
from hs_formats.hsz_index import HEAD_BYTES, TAIL_SUFFIX, FloatsSegment, Index, OpaqueSegment, head_frame, tail_frame
from hs_formats.layout import MAX_GROUP_BYTES, Floats, Layout
from hs_formats.statistics import SlotStatistics
from hs_formats.stored import CODECS, open_stored, read_stored, stored_blocks
from hs_formats.zstd import MAX_BLOCK_BYTES, RawFrame, frame_content, huffman_frame, skippable_frame
from unhsz import unhsz

PLANES = ("default", "fast")
EXPONENTS = {"bfloat16": 7, "float16": 10, "float32": 23, "float8_e4m3fn": 3, "float8_e5m2": 2}


@pytest.fixture(autouse=True)
def _small_pieces() -> Iterator[None]:
    """Pieces, chunks and blocks so small that short files have several."""
    with (
        mock.patch.object(layouts, "OPAQUE_BYTES", 50),
        mock.patch("hs_formats.hsz_encode.OPAQUE_BYTES", 50),
        mock.patch.object(layouts, "_CHUNK_BYTES", 160),
        mock.patch.object(layouts, "_GROUP_BYTES", 400),
        mock.patch.object(planes, "BLOCK_WORDS", 24),
        mock.patch("hs_formats.hsz_encode.BLOCK_WORDS", 24),
        mock.patch.object(planes, "_NONE_BELOW_ROWS", 4),
        mock.patch.object(planes, "_OCTAVES_BELOW_ROWS", 12),
    ):
        yield


def _states(floats: Floats, seed: int) -> np.ndarray[Any, Any]:
    """Bits that look like hidden states in one half and like nothing in the other."""
    dice = np.random.default_rng(seed)
    shape, bits = (floats.rows, floats.slots, floats.channels), 8 * floats.words.itemsize
    noise = dice.integers(0, 1 << bits, shape, dtype=np.uint64)
    if seed % 4 == 0:
        return noise.astype(floats.words.dtype)
    mantissa = EXPONENTS[floats.dtype]
    middle = 1 << bits - 2
    near = middle + (dice.normal(0, 1.5, shape) * (1 << mantissa)).astype(np.int64)
    signs = dice.integers(0, 2, shape, dtype=np.int64) << bits - 1
    tame = np.clip(near, 0, (1 << bits - 1) - 1).astype(np.uint64) | signs.astype(np.uint64)
    return np.where(dice.random(shape) < 0.02, noise, tame).astype(floats.words.dtype)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, Layout]:
    pieces, tensors, at = list[bytes](), list[Floats](), 0
    for number in range(draw(st.integers(0, 2))):
        gap = draw(st.binary(max_size=120))
        floats = Floats(
            at + len(gap), draw(st.sampled_from(sorted(EXPONENTS))),
            draw(st.integers(1, 25)), draw(st.integers(1, 4)), draw(st.integers(1, 30)),
        )  # fmt: skip
        tensors.append(floats)
        pieces += [gap, _states(floats, draw(st.integers(0, 1000)) + number).tobytes()]
        at = floats.stop
    pieces.append(draw(st.binary(max_size=120)))
    data = b"".join(pieces)
    return data, Layout(len(data), tuple(tensors))


def _encode(data: bytes, layout: Layout, codec: str = "default", *, block: int = 0) -> bytes:
    blocks = [data[at : at + block] for at in range(0, len(data), block)] if block else [data]
    return b"".join(CODECS[codec].encode(blocks, len(data), layout=layout))


def _frames(stored: bytes) -> list[bytes]:
    """All frames of a file, skippable ones too, found without this project's code."""
    frames, at = list[bytes](), 0
    while at < len(stored):
        magic, size = struct.unpack_from("<II", stored, at)
        if magic & ~15 == 0x184D2A50:
            length = 8 + size
        else:
            decoder = zstandard.ZstdDecompressor().decompressobj()
            decoder.decompress(stored[at:])
            assert decoder.eof
            length = len(stored) - at - len(decoder.unused_data)
        frames.append(stored[at : at + length])
        at += length
    return frames


@settings(max_examples=150, deadline=None)
@given(files(), st.sampled_from(PLANES), st.integers(0, 200), st.randoms(use_true_random=False))
def test_any_file_comes_back_whole_and_in_parts(
    file: tuple[bytes, Layout], codec: str, block: int, dice: random.Random
) -> None:
    data, layout = file
    stored = _encode(data, layout, codec, block=block)
    opened = HszFile.of_bytes(stored)
    assert (opened.index.codec, opened.size, opened.index.xxh3) == (codec, len(data), xxh3_hex([data]))
    whole = bytearray(len(data))
    opened.read_all(whole)
    assert whole == data
    assert b"".join(opened.blocks()) == data
    assert unhsz(stored) == data
    for _ in range(4):
        start, stop = sorted((dice.randint(0, len(data)), dice.randint(0, len(data))))
        out = bytearray(stop - start)
        opened.read_into(start, out)
        assert out == data[start:stop]
    for segment in opened.floats:
        floats = segment.floats
        words = np.frombuffer(data, floats.words.dtype, floats.rows * floats.slots * floats.channels, floats.start)
        words = words.reshape(floats.rows, floats.slots, floats.channels)
        slot = dice.randrange(floats.slots)
        first, behind = sorted((dice.randint(0, floats.rows), dice.randint(0, floats.rows)))
        rows = np.zeros((behind - first, 2, floats.channels), floats.words.dtype)
        opened.read_slot(segment, slot, first, rows[:, 1])
        assert (rows[:, 1] == words[first:behind, slot]).all()
        assert not rows[:, 0].any()


@settings(max_examples=60, deadline=None)
@given(files(), st.sampled_from(PLANES))
def test_slots_taken_together_are_stored_as_slot_by_slot(file: tuple[bytes, Layout], codec: str) -> None:
    data, layout = file
    with mock.patch("hs_formats.hsz_encode.BLOCK_WORDS", 0):
        slot_by_slot = _encode(data, layout, codec)
    with mock.patch("hs_formats.hsz_encode.BLOCK_WORDS", 1 << 30):
        together = _encode(data, layout, codec)
    assert together == slot_by_slot


@settings(max_examples=60, deadline=None)
@given(files(), st.sampled_from(PLANES))
def test_a_file_is_zstd_frames_with_size_and_checksum_between_two_that_are_skipped(
    file: tuple[bytes, Layout], codec: str
) -> None:
    data, layout = file
    head, *frames, tail = _frames(_encode(data, layout, codec))
    assert head == struct.pack("<II", 0x184D2A50, 16) + f"hsz 1 {codec}\n".encode().ljust(16)
    assert tail[:4] == struct.pack("<I", 0x184D2A51)
    for frame in frames:
        parameters = zstandard.get_frame_parameters(frame)
        assert parameters.has_checksum
        assert len(zstandard.ZstdDecompressor().decompress(frame)) == parameters.content_size


@pytest.mark.parametrize("codec", PLANES)
def test_the_command_line_tool_finds_every_file_whole_and_a_damaged_plane(tmp_path: Path, codec: str) -> None:
    if shutil.which("zstd") is None:
        pytest.skip("no zstd command here")
    floats = Floats(30, "bfloat16", 25, 3, 20)
    data = os.urandom(30) + _states(floats, 1).tobytes() + b"end" * 40
    path = tmp_path / "x.pt.hsz"
    for content, layout in ((data, Layout(len(data), (floats,))), (b"", Layout(0)), (data, Layout(len(data)))):
        path.write_bytes(_encode(content, layout, codec))
        subprocess.run(["zstd", "-q", "-t", str(path)], check=True)
    stored = bytearray(_encode(data, Layout(len(data), (floats,)), codec))
    stored[len(stored) // 2] ^= 0x10
    path.write_bytes(stored)
    assert subprocess.run(["zstd", "-q", "-t", str(path)], stderr=subprocess.DEVNULL).returncode != 0


def _example(codec: str = "default", *, rows: int = 9) -> tuple[bytes, bytes]:
    floats = Floats(70, "bfloat16", rows, 2, 20)
    data = bytes(range(70)) + _states(floats, 3).tobytes() + b"the end"
    return data, _encode(data, Layout(len(data), (floats,)), codec)


def _read_everything(stored: bytes) -> bytes:
    """By every way there is; they must agree."""
    opened = HszFile.of_bytes(stored)
    out, whole = bytearray(opened.size), bytearray(opened.size)
    opened.read_into(0, out)
    opened.read_all(whole)
    assert out == whole == b"".join(opened.blocks())
    for segment in opened.floats:
        for slot in range(segment.slots):
            words = np.zeros((segment.rows, segment.channels), segment.floats.words.dtype)
            opened.read_slot(segment, slot, 0, words)
            assert words.tobytes() == np.frombuffer(out, words.dtype, segment.rows * segment.slots * segment.channels,
                segment.start).reshape(segment.rows, segment.slots, -1)[:, slot].tobytes()  # fmt: skip
    return bytes(out)


@pytest.mark.parametrize("codec", PLANES)
def test_cut_anywhere(codec: str) -> None:
    _, stored = _example(codec)
    for size in range(len(stored)):
        with pytest.raises(FormatError):
            HszFile.of_bytes(stored[:size])
    for extra in (b"\0", skippable_frame(1, b""), stored):
        with pytest.raises(FormatError):
            HszFile.of_bytes(stored + extra)


@pytest.mark.parametrize("codec", PLANES)
def test_a_flipped_bit_anywhere_is_found(codec: str) -> None:
    data, stored = _example(codec)
    for at in range(len(stored)):
        for bit in (0, 3, 7):
            damaged = bytearray(stored)
            damaged[at] ^= 1 << bit
            try:
                assert _read_everything(bytes(damaged)) == data  # bits without a meaning
            except FormatError:
                continue


@pytest.mark.parametrize("codec", PLANES)
def test_a_flipped_bit_is_found_by_those_who_read_one_slot(codec: str) -> None:
    data, stored = _example(codec)
    opened = HszFile.of_bytes(stored)
    (segment,) = opened.floats
    words = np.frombuffer(data, "<u2", 9 * 2 * 20, segment.start).reshape(9, 2, 20)
    starts = next(starts for item, starts in opened.index.placed() if item is segment)
    found = 0
    planes_of_slot = range(starts[segment.has_offsets], starts[segment.has_offsets + 2])  # 0, of the first group
    for at in planes_of_slot:
        damaged = bytearray(stored)
        damaged[at] ^= 0x40
        opened = HszFile.of_bytes(damaged)
        rows = np.zeros((segment.rows, 2, segment.channels), "<u2")
        opened.read_slot(opened.floats[0], 1, 0, rows[:, 1])
        assert (rows[:, 1] == words[:, 1]).all()
        try:
            opened.read_slot(opened.floats[0], 0, 0, rows[:, 0])
        except FormatError:
            found += 1
        else:
            assert (rows == words).all()  # a bit without a meaning
    assert found >= len(planes_of_slot) - 4


@settings(max_examples=200)
@given(st.binary(max_size=120))
def test_noise(data: bytes) -> None:
    _, stored = _example()
    for hostile in (data, stored[:HEAD_BYTES] + data, data + stored[-TAIL_SUFFIX.size :], stored[:-40] + data):
        with pytest.raises(FormatError):
            _read_everything(hostile)


FRAMES = [huffman_frame(b"\x7f" * 20), huffman_frame(b"\x00" * 20)]
FLOATS = {"start": 0, "dtype": "bfloat16", "rows": 4, "slots": 1, "channels": 5, "transform": "bytes", "group_rows": 4,
          "frames": [len(frame) for frame in FRAMES]}  # fmt: skip


def _forged(stored: list[bytes] = FRAMES, /, *, size: int = 40, **changes: Any) -> bytes:
    """A file whose checksums are right, whatever its index says."""
    index = {"codec": "fast", "size": size, "xxh3": "0" * 32, "segments": [{"kind": "floats", **FLOATS, **changes}]}
    data = msgspec.json.encode(index)
    tail = skippable_frame(1, data + TAIL_SUFFIX.pack(xxhash.xxh3_64_intdigest(data), len(data), b"hsz1"))
    return head_frame("fast") + b"".join(stored) + tail


def test_the_forged_file_is_good_but_for_what_each_case_changes() -> None:
    opened = HszFile.of_bytes(_forged())
    out = bytearray(40)
    opened.read_into(0, out)
    assert out == b"\x00\x7f" * 20


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": 0}, "floats"),
        ({"rows": -4, "slots": -1}, "floats"),
        ({"rows": 5}, "tail|groups|frames|bytes of"),
        ({"rows": 1 << 61, "group_rows": 1}, "frames where"),
        ({"rows": 1 << 63}, "absurd|understood"),
        ({"rows": 10**30}, "absurd|understood"),
        ({"slots": 1 << 40}, "cannot be coded"),
        ({"channels": MAX_BLOCK_BYTES + 1}, "cannot be coded"),
        ({"rows": 1 << 26, "group_rows": 1 << 26}, "groups of"),
        ({"group_rows": 0}, "groups of"),
        ({"group_rows": 5}, "groups of"),
        ({"group_rows": 2}, "frames where"),
        ({"dtype": "float64"}, "cannot be coded"),
        ({"dtype": "int64"}, "cannot be coded"),
        ({"transform": "exponent"}, "frames where"),
        ({"transform": "other"}, "not understood"),
        ({"start": 1}, "starts at byte 1"),
        ({"start": -1}, "floats"),
        ({"kind": "other"}, "not understood"),
        ({"frames": [len(FRAMES[0]), 0]}, "no bytes"),
        ({"frames": [len(FRAMES[0]) + 1, len(FRAMES[1])]}, "its frames have"),
        ({"frames": [sum(map(len, FRAMES)) + 5, -5]}, "no bytes"),
        ({"frames": []}, "frames where"),
        ({"size": 41}, "the segments hold"),
        ({"size": 1 << 62}, "the segments hold"),
    ],
)
def test_an_index_that_lies(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(FormatError, match=says):
        HszFile.of_bytes(_forged(**changes))


@pytest.mark.parametrize(
    "bad",
    [
        zstandard.ZstdCompressor(write_checksum=True).compress(bytes(1 << 30)),  # a bomb
        zstandard.ZstdCompressor(write_checksum=True).compress(b"x" * 19),
        zstandard.ZstdCompressor(write_checksum=True).compress(b"x" * 21),
        zstandard.ZstdCompressor(write_checksum=False).compress(b"x" * 20),
        zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(b"x" * 20),
        skippable_frame(2, b"x" * 20),
        huffman_frame(b"x" * 20) + b"\0",
        huffman_frame(b"x" * 20)[:-1],
        b"x" * 20,
        b"x",
    ],
    ids=["bomb", "short", "long", "no checksum", "no size", "skippable", "trailing", "cut", "noise", "byte"],
)
def test_a_frame_that_is_not_the_plane_it_should_be(bad: bytes) -> None:
    for frames in ([bad, FRAMES[1]], [FRAMES[0], bad]):
        opened = HszFile.of_bytes(_forged(frames, frames=[len(frame) for frame in frames]))
        with pytest.raises(FormatError, match="zstd"):
            opened.read_into(0, bytearray(40))


def test_nothing_is_allocated_for_what_a_file_merely_claims(tmp_path: Path) -> None:
    frame = huffman_frame(bytes(1 << 20))
    count = 1 << 15  # claims 32 GiB
    segment = OpaqueSegment(start=0, stop=count << 20, chunk_bytes=1 << 20, frames=[len(frame)] * count)
    index = Index(codec="default", size=count << 20, xxh3="0" * 32, segments=[segment])
    path = tmp_path / "bomb.pt.hsz"
    path.write_bytes(head_frame("default") + frame * count + tail_frame(index))
    with pytest.raises(FormatError, match="more than 1000"):
        read_stored(path, limit_bytes=1000)
    with open_stored(path) as original:
        out = bytearray(10)
        original.read_into((3 << 20) - 5, out)
        assert out == bytes(10)
    blocks = stored_blocks(path)
    assert next(blocks) == bytes(1 << 20)


def test_heads() -> None:
    _, stored = _example()
    for head, says in (
        (skippable_frame(0, b"hsz 2 default\n".ljust(16)), "version 2"),
        (skippable_frame(0, b"hsz 1 fast\n".ljust(16)), "name codec fast and default"),
        (skippable_frame(0, b"zst".ljust(16)), "not an hsz file"),
        (skippable_frame(0, b"\xff" * 16), "not an hsz file"),
        (skippable_frame(1, b"hsz 1 default\n".ljust(16)), "not an hsz file"),
    ):
        assert len(head) == HEAD_BYTES
        with pytest.raises(FormatError, match=says):
            HszFile.of_bytes(head + stored[HEAD_BYTES:])


def test_an_index_too_large_is_not_written() -> None:
    segment = OpaqueSegment(start=0, stop=1, chunk_bytes=1, frames=[1 << 40] * 2_000_000)
    with pytest.raises(FormatError, match="more than"):
        tail_frame(Index(codec="default", size=1, xxh3="", segments=[segment]))


@pytest.mark.parametrize("words", [8, 48, 10**6])
def test_planes_cut_into_other_blocks_are_read(words: int) -> None:
    data, stored = _example("fast", rows=25)
    with mock.patch.object(planes, "BLOCK_WORDS", words):
        assert _read_everything(stored) == data


def test_facts_are_kept_and_asked_for_after_the_last_block() -> None:
    data, asked = b"abc" * 40, list[str]()
    slots = [SlotStatistics(finite=True, max_abs=2.5, rms=0.5, rows=3), SlotStatistics(finite=False, max_abs=None,
             rms=None, rows=3)]  # fmt: skip

    def blocks() -> Iterator[bytes]:
        yield data
        asked.append("all given")

    def facts() -> Facts:
        assert asked == ["all given"]
        return Facts(xxh3_hex([data]), slots)

    stored = b"".join(CODECS["default"].encode(blocks(), len(data), facts=facts))
    assert HszFile.of_bytes(stored).index.statistics == slots
    assert _read_everything(stored) == data
    wrong = b"".join(CODECS["default"].encode([data], len(data), facts=lambda: Facts("0" * 32)))
    with pytest.raises(FormatError, match="checksum"):
        HszFile.of_bytes(wrong).read_all(bytearray(len(data)))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 99, 101])
def test_the_announced_size_must_come(codec: str, size: int) -> None:
    with pytest.raises(FormatError, match="announced"):
        list(CODECS[codec].encode([b"x" * 60, b"", b"x" * 40], size))


def test_layouts_that_make_no_sense() -> None:
    floats = Floats(10, "bfloat16", 2, 1, 5)
    for make, says in (
        (lambda: Layout(29, (floats,)), "floats at 10"),
        (lambda: Layout(99, (floats, Floats(20, "bfloat16", 2, 1, 5))), "after 30"),
        (lambda: Floats(0, "float64", 1, 1, 1), "cannot be coded"),
        (lambda: Floats(0, "bfloat16", 1, MAX_GROUP_BYTES, 1), "cannot be coded"),
        (lambda: Floats(-1, "bfloat16", 1, 1, 1), "at byte -1"),
        (lambda: list(CODECS["fast"].encode([b""], 5, layout=Layout(4))), "layout is of 4"),
    ):
        with pytest.raises(FormatError, match=says):
            make()
    assert Layout.of(60, [Floats(40, "bfloat16", 1, 1, 2), floats]).floats[0] is floats


@given(files())
def test_pieces_tile_the_file(file: tuple[bytes, Layout]) -> None:
    at = 0
    for start, count, floats in file[1].pieces():
        assert start == at
        assert count > 0
        if floats is not None:
            assert (start - floats.start) % floats.row_bytes == count % floats.row_bytes == 0
        at += count
    assert at == len(file[0])


@settings(max_examples=60)
@given(st.integers(0, 300), st.integers(1, 40), st.data())
def test_raw_frames_are_frames_to_anybody(size: int, block: int, data: st.DataObject) -> None:
    content = data.draw(st.binary(min_size=size, max_size=size))
    frame = RawFrame(size, block)
    at = 0
    for number, view in enumerate(frame.blocks):
        view[:] = content[at : at + len(view)]
        frame.filled(number)
        at += len(view)
    stored = bytes(frame.close())
    assert zstandard.ZstdDecompressor().decompress(stored) == content
    assert b"".join(frame_content(stored, size)) == content
    assert len(frame_content(stored, size)) == max(1, math.ceil(size / block))
    damaged = bytearray(stored)
    damaged[-1] ^= 1
    with pytest.raises(FormatError, match="checksum"):
        frame_content(damaged, size)
    assert b"".join(frame_content(damaged, size, verify=False)) == content


def test_many_threads_at_once() -> None:
    examples = {codec: [_example(codec, rows=rows) for rows in (5, 12, 25)] for codec in PLANES}
    wrong: list[object] = []

    def work(number: int) -> None:
        for round_ in range(15):
            codec, rows = PLANES[(number + round_) % 2], (number + round_) % 3
            data, stored = examples[codec][rows]
            if _read_everything(stored) != data or _example(codec, rows=(5, 12, 25)[rows]) != (data, stored):
                wrong.append((number, round_))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_piece_once_yielded_stays_as_it_is() -> None:
    data, stored = _example(rows=25)
    pieces = list(
        CODECS["default"].encode([data], len(data), layout=Layout(len(data), (Floats(70, "bfloat16", 25, 2, 20),)))
    )
    assert len(pieces) > 8
    assert b"".join(pieces) == stored


def test_reading_outside() -> None:
    data, stored = _example()
    opened = HszFile.of_bytes(stored)
    (segment,) = opened.floats
    words = np.empty((2, 20), "<u2")
    calls: list[Callable[[], None]] = [
        lambda: opened.read_into(-1, bytearray(1)),
        lambda: opened.read_into(len(data), bytearray(1)),
        lambda: opened.read_slot(segment, 2, 0, words),
        lambda: opened.read_slot(segment, 0, 8, words),
        lambda: opened.read_slot(segment, 0, 0, words[:, :19]),
        lambda: opened.read_slot(segment, 0, 0, words.view("<i2")),
        lambda: opened.read_all(bytearray(len(data) + 1)),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"of|for"):
            call()
    opened.read_into(len(data), bytearray())
    assert isinstance(segment, FloatsSegment)
