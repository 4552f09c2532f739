"""Any bytes in place of a part give FormatError and nothing else: no other exception, no wrong content."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hs_formats.errors import FormatError
from hs_formats.names import PartName, Rid
from hs_formats.part import PartInfo, inspect_part
from part_factory import part_bytes

NAME = PartName(Rid("0000abcd", 3, 0), 0, 3, 3, 0)
WHOLE = part_bytes(NAME, [7, 8, 9], torch.arange(36.0).view(3, 3, 4))
INFO = inspect_part(io.BytesIO(WHOLE), NAME)
DIRECTORY = WHOLE.index(b"PK\x01\x02")
HEADER = WHOLE.index(b'{"rid"')


def _inspect(data: bytes) -> PartInfo | None:
    try:
        return inspect_part(io.BytesIO(data), NAME)
    except FormatError:
        return None


def test_no_cut_file_is_whole() -> None:
    for size in range(len(WHOLE)):
        assert _inspect(WHOLE[:size]) is None
        assert _inspect(WHOLE[size + 1 :]) is None


def test_trailing_bytes_and_prefixes_are_refused() -> None:
    for extra in (b"\0", b"garbage", WHOLE):
        assert _inspect(WHOLE + extra) is None
        assert _inspect(extra + WHOLE) is None


def test_a_flipped_byte_outside_the_tensors_is_refused_or_harmless() -> None:
    for at in range(len(WHOLE)):
        for mask in (0x01, 0x80, 0xFF):
            data = bytearray(WHOLE)
            data[at] ^= mask
            info = _inspect(bytes(data))
            assert info in (None, INFO)
            if at >= HEADER and at < DIRECTORY:
                assert info is None  # all of hs.json is under its CRC


def test_a_removed_or_doubled_block_is_refused() -> None:
    for at in range(0, len(WHOLE) - 16, 5):
        assert _inspect(WHOLE[:at] + WHOLE[at + 16 :]) is None
        assert _inspect(WHOLE[: at + 16] + WHOLE[at:]) is None


@settings(max_examples=500, deadline=None)
@given(st.integers(0, len(WHOLE)), st.integers(0, 80), st.binary(max_size=80))
def test_any_replaced_range(at: int, gone: int, noise: bytes) -> None:
    assert _inspect(WHOLE[:at] + noise + WHOLE[at + gone :]) in (None, INFO)


@settings(max_examples=500, deadline=None)
@given(st.integers(DIRECTORY, len(WHOLE) - 1), st.sampled_from([b"\xff" * 4, b"\0" * 4, b"\xff" * 2, b"\xff" * 8]))
def test_extreme_numbers_in_the_directory(at: int, number: bytes) -> None:
    assert _inspect(WHOLE[:at] + number + WHOLE[at + len(number) :]) in (None, INFO)


@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_noise(data: bytes) -> None:
    assert _inspect(data) is None
    assert _inspect(data + WHOLE[-22:]) is None
    zip64 = b"PK\x06\x06" + data[:52].ljust(52, b"\xff") + b"PK\x06\x07" + data[:16].ljust(16, b"\xff")
    assert _inspect(data + zip64 + WHOLE[-22:-6] + b"\xff" * 4 + b"\0\0") is None


def test_real_files_that_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    torch.save({"input_ids": torch.arange(3)}, tmp_path / "theirs.pt")
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 40)
    for path in tmp_path.iterdir():
        with path.open("rb") as file, pytest.raises(FormatError):
            inspect_part(file, NAME)
