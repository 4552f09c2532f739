"""The codecs on what a model really computed, in pieces of the size that is used."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from hs_formats.hsz_decode import HszFile
from hs_formats.layout import Floats, Layout
from hs_formats.sniff import sniff_layout
from hs_formats.statistics import StatesStatistics
from hs_formats.stored import CODECS, open_stored, stored_blocks
from hs_formats.zstd import FRAME_MAGIC
from unhsz import unhsz

SAMPLES = Path(__file__).parents[1] / "samples"
BFLOAT16 = sorted(SAMPLES.glob("*_bfloat16.pt"))


def _encode(data: bytes, layout: Layout, codec: str) -> bytes:
    return b"".join(CODECS[codec].encode([data], len(data), layout=layout))


def _packed(path: Path, codec: str) -> tuple[bytes, bytes]:
    data = path.read_bytes()
    with path.open("rb") as file:
        layout = sniff_layout(file, len(data))
    assert len(layout.floats) == 1
    return data, _encode(data, layout, codec)


@pytest.mark.parametrize(
    ("codec", "least", "most"), [("default", 1.48, 1.52), ("fast", 1.44, 1.50), ("zstd", 1.2, 1.3)]
)
def test_real_bfloat16_states_become_so_small(codec: str, least: float, most: float) -> None:
    ratios: list[float] = []
    for path in BFLOAT16:
        data, stored = _packed(path, codec)
        ratios.append(len(data) / len(stored))
        if codec != "zstd":
            assert unhsz(stored) == data
    assert len(ratios) == 4
    assert least < mean(ratios) < most  # more than the most would be too good to be true


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1.18), ("float16", 1.15)])
def test_other_types_become_smaller_too(dtype: str, least: float) -> None:
    for codec in ("default", "fast"):
        data, stored = _packed(SAMPLES / f"smollm2_L15_{dtype}.pt", codec)
        assert unhsz(stored) == data
        if codec == "default":
            assert len(data) / len(stored) > least


def _coded(stored: bytes) -> list[bool]:
    """Of each plane of the first tensor, whether it is compressed: a raw frame is longer than its content."""
    opened = HszFile.of_bytes(stored)
    (segment,) = opened.floats
    ((_, starts),) = opened.index.placed()
    first = int(segment.has_offsets)
    frames = [stored[start:stop] for start, stop in itertools.pairwise(starts[first:])]
    assert all(frame[:4] == FRAME_MAGIC for frame in frames)
    return [len(frame) < segment.rows * segment.channels for frame in frames]


@pytest.mark.parametrize("codec", ["default", "fast"])
def test_planes_that_carry_little_are_coded_and_others_left(codec: str) -> None:
    words = torch.load(BFLOAT16[1], weights_only=True)
    for tensor, coded in (
        (words, [True, False]),
        (words.float(), [True, False, True, True]),  # the low bytes are zero
        (words.half(), [True, True]),  # three bits of each mantissa are zero
        (torch.load(SAMPLES / "smollm2_L15_float32.pt", weights_only=True), [True, False, False, False]),
    ):
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        dtype = str(tensor.dtype).removeprefix("torch.")
        stored = _encode(data, Layout(len(data), (Floats(0, dtype, len(tensor), 1, tensor.shape[1]),)), codec)
        assert unhsz(stored) == data
        assert _coded(stored) == coded, (dtype, codec)


@pytest.mark.parametrize("codec", ["default", "fast"])
def test_several_groups_of_full_size(tmp_path: Path, codec: str) -> None:
    """9 MiB in four slots: two groups, chunks of 2 MiB, blocks that rows do not divide."""
    states = torch.stack([torch.load(path, weights_only=True) for path in BFLOAT16], dim=1)
    states = torch.cat([states.roll(number, dims=2) for number in range(8)])
    words = states.view(torch.int16).numpy().view("<u2")
    data = b"head" + words.tobytes() + b"tail"
    floats = Floats(4, "bfloat16", *words.shape)
    assert 1 < words.shape[0] / floats.group_rows < 3
    stored = _encode(data, Layout(len(data), (floats,)), codec)
    assert unhsz(stored) == data
    path = tmp_path / "x.pt.hsz"
    path.write_bytes(stored)
    if shutil.which("zstd"):
        subprocess.run(["zstd", "-q", "-t", str(path)], check=True)
    assert b"".join(stored_blocks(path)) == data
    rows = np.empty((900, 576), "<u2")
    with open_stored(path) as original:
        original.read_slot(floats, 2, 1000, rows)
        assert (rows == words[1000:1900, 2]).all()
        out = bytearray(5000)
        original.read_into(len(data) - 5000, out)
        assert out == data[-5000:]


@pytest.mark.parametrize("codec", CODECS)
def test_rows_of_a_slot_from_any_stored_file(tmp_path: Path, codec: str) -> None:
    words = np.random.default_rng(1).integers(0, 1 << 16, (40, 3, 50), np.uint16)
    data = b"xx" + words.tobytes()
    floats = Floats(2, "bfloat16", 40, 3, 50)
    path = tmp_path / f"x{CODECS[codec].suffix}"
    path.write_bytes(_encode(data, Layout(len(data), (floats,)), codec))
    rows = np.zeros((10, 2, 50), np.uint16)
    with open_stored(path) as original:
        assert original.size == len(data)
        original.read_slot(floats, 1, 7, rows[:, 0])
        assert (rows[:, 0] == words[7:17, 1]).all()
        assert not rows[:, 1].any()
        other = Floats(2, "bfloat16", 20, 3, 100)  # not the tensor that the file knows of
        original.read_slot(other, 2, 3, wide := np.empty((5, 100), np.uint16))
        assert (wide == words.reshape(20, 3, 100)[3:8, 2]).all()
        with pytest.raises(ValueError, match="of"):
            original.read_slot(floats, 1, 35, rows[:, 0])
        with pytest.raises(ValueError, match="of"):
            original.read_into(len(data) - 1, bytearray(2))


@settings(max_examples=80, deadline=None)
@given(
    rows=st.integers(1, 300), slots=st.integers(1, 3), channels=st.integers(1, 20), cut=st.integers(1, 100),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]), seed=st.integers(0, 999), bad=st.booleans(),
)  # fmt: skip
def test_statistics_are_those_of_the_values(
    rows: int, slots: int, channels: int, cut: int, dtype: str, seed: int, bad: bool
) -> None:
    dice = torch.Generator().manual_seed(seed)
    states = (torch.randn(rows, slots, channels, generator=dice) * 10).to(getattr(torch, dtype))
    if bad:
        states.view(-1)[seed % states.numel()] = [float("nan"), float("inf"), float("-inf")][seed % 3]
    statistics = StatesStatistics(dtype, rows, slots, channels)
    for start in range(0, rows, cut):
        statistics.add(states[start : start + cut].contiguous().view(torch.uint8).numpy().tobytes())
    values = states.double()
    step = max(1, min(64, rows // 16))
    assert statistics.finite == bool(torch.isfinite(values).all())
    for slot, found in enumerate(statistics.result()):
        own: Any = values[:, slot]
        finite = bool(torch.isfinite(own).all())
        assert found.finite == finite
        assert found.rows == len(own[::step])
        assert found.max_abs == (float(own.abs().max()) if finite else None)
        rms = own[::step].square().mean().sqrt()
        assert found.rms == (pytest.approx(float(rms)) if torch.isfinite(rms) else None)
