"""Files of other programs: their floats are found, nothing of them is run, and every one comes back as it was."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from hs_formats.hsz_decode import HszFile
from hs_formats.layout import Floats
from hs_formats.names import PartName, Rid
from hs_formats.sniff import sniff_layout
from hs_formats.stored import CODECS
from part_factory import part_bytes, tensor_bytes


def _sniff(data: bytes) -> list[tuple[str, int, int, int]]:
    layout = sniff_layout(io.BytesIO(data), len(data))
    stored = b"".join(CODECS["default"].encode([data], len(data), layout=layout))
    out = bytearray(len(data))
    HszFile.of_bytes(stored).read_all(out)
    assert out == data
    return [(floats.dtype, floats.rows, floats.slots, floats.channels) for floats in layout.floats]


def _saved(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_tensors_of_every_float_type_are_found_where_they_lie(dtype: torch.dtype) -> None:
    tensor = torch.randn(20, 3, 8).to(dtype)
    data = _saved({"a": torch.arange(5), "b": [tensor], "c": "text"})
    (floats,) = sniff_layout(io.BytesIO(data), len(data)).floats
    assert (floats.dtype, floats.rows, floats.slots, floats.channels) == (str(dtype).removeprefix("torch."), 20, 3, 8)
    assert data[floats.start : floats.stop] == tensor_bytes(tensor)


def test_shapes() -> None:
    for shape, seen in (
        ((20, 8), (20, 1, 8)),
        ((4, 16, 8), (64, 1, 8)),  # a batch: sixteen tokens are no slots of four rows
        ((2, 20, 3, 8), (120, 1, 8)),
        ((2048,), (2, 1, 1024)),
    ):
        assert _sniff(_saved(torch.randn(shape))) == [("float32", *seen)]
    for other in (
        torch.randn(7),
        torch.randn(0, 8),
        torch.randn(3, 4).T,
        torch.randn(4, 4).double(),
        torch.tensor(1.0),
    ):
        assert _sniff(_saved(other)) == []


def test_views_shared_storages_and_parameters() -> None:
    whole = torch.randn(40, 8)
    assert _sniff(_saved([whole, whole[10:20]])) == [("float32", 40, 1, 8)]
    assert _sniff(_saved(whole[10:20])) == [("float32", 10, 1, 8)]
    model = torch.nn.Linear(16, 64)
    assert _sniff(_saved(model.state_dict())) == [("float32", 64, 1, 16), ("float32", 1, 1, 64)]


def test_parts() -> None:
    name = PartName(Rid("0000abcd", 1, 0), 0, 30, 30, 0)
    data = part_bytes(name, range(30), torch.randn(30, 3, 4).bfloat16())
    assert _sniff(data) == [("bfloat16", 30, 3, 4)]


def test_safetensors() -> None:
    tensor = torch.randn(10, 16).bfloat16()
    header = {"__metadata__": {"x": "y"}, "h": {"dtype": "BF16", "shape": [10, 16], "data_offsets": [8, 328]},
              "i": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}  # fmt: skip
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(8) + tensor_bytes(tensor)
    assert _sniff(data) == [("bfloat16", 10, 1, 16)]
    assert _sniff(data[:-1]) == []
    lying = text.replace(b"328", b"329")
    assert _sniff(struct.pack("<Q", len(lying)) + lying + bytes(400)) == []


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil"),))


def test_pickles_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x/data.pkl", pickle.dumps(_Evil()))
    assert _sniff(file.getvalue()) == []
    for module, name in (("os", "system"), ("builtins", "eval"), ("torch.hub", "load")):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("x/data.pkl", f"c{module}\n{name}\n(Vtouch evil\ntR.".encode())
        assert _sniff(file.getvalue()) == []
    assert list(tmp_path.iterdir()) == []


SAVED = _saved([torch.randn(30, 2, 6).bfloat16(), torch.randn(64)])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200) | st.tuples(st.integers(0, len(SAVED)), st.binary(max_size=9)))
def test_damaged_files_are_files_like_others(damage: bytes | tuple[int, bytes]) -> None:
    if isinstance(damage, bytes):
        _sniff(damage)
        return
    at, put = damage
    _sniff(SAVED[:at] + put + SAVED[at + len(put) :])
    _sniff(SAVED[:at] + put)


def test_floats_are_worth_finding() -> None:
    sample = Path(__file__).parents[1] / "samples" / "smollm2_L15_bfloat16.pt"
    data = sample.read_bytes()
    (floats,) = sniff_layout(io.BytesIO(data), len(data)).floats
    assert floats == Floats(floats.start, "bfloat16", 256, 1, 576)
