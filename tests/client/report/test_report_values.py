"""What the report says about slots, against the same computed plainly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from export_sets import make_export_set
from hs_client.report.values import OUTLIER_TIMES, ValueFacts, read_values, slot_names
from hs_formats.dataset import DatasetInfo, DatasetPaths
from hs_formats.index import DatasetIndex
from part_factory import dataset_info, random_record, write_dataset


def values_of(paths: DatasetPaths, count: int = 100) -> ValueFacts:
    info = paths.read_info()
    assert isinstance(info, DatasetInfo)
    shown: list[tuple[int, int]] = []
    samples = list(DatasetIndex.load(paths).samples.values())
    values = read_values(paths, info, samples, count, seen=lambda number, total: shown.append((number, total)))
    total = min(count, len(samples))
    assert shown == [(number, total) for number in range(1, total + 1)]
    return values


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sizes_and_channels_that_stand_out(tmp_path: Path, dtype: torch.dtype) -> None:
    made = make_export_set(tmp_path, (40, 1, 90, 2, 7), dtype=dtype)
    values = values_of(made.paths)
    assert (values.samples, values.tokens, list(values.unreadable)) == (5, 140, [])
    states = [record.states.double().numpy() for record in made.records.values()]
    firsts = np.stack([each[0] for each in states])
    later = np.concatenate([each[1:] for each in states])
    assert [slot.name for slot in values.slots] == ["boundary 2", "boundary 4", "boundary 5", "last state"]
    for number, slot in enumerate(values.slots):
        rms = np.sqrt((later[:, number] ** 2).mean(axis=1))
        assert [slot.low, slot.rms, slot.high] == pytest.approx(np.percentile(rms, (5, 50, 95)), rel=1e-5)
        assert slot.first_rms == pytest.approx(np.median(np.sqrt((firsts[:, number] ** 2).mean(axis=1))), rel=1e-5)
        assert slot.max_abs == pytest.approx(max(np.abs(each[:, number]).max() for each in states))
        channels = np.sqrt((later[:, number] ** 2).mean(axis=0))
        np.testing.assert_allclose(slot.channel_rms, channels, rtol=1e-5)
        standing_out = np.flatnonzero(channels > OUTLIER_TIMES * np.median(channels))
        assert slot.outlier_count == len(standing_out)
        if number < 3:
            assert slot.outliers[0].channel == 3  # the set makes it twenty times the others
            assert slot.outliers[0].share == pytest.approx(channels[3] ** 2 / (channels**2).sum(), rel=1e-5)


def test_compression_by_slot_adds_up(tmp_path: Path) -> None:
    made = make_export_set(tmp_path, (700, 800), hidden_size=128)
    values = values_of(made.paths)
    lines = [line for sample in DatasetIndex.load(made.paths).samples.values() for line in sample.parts]
    stored, raw = sum(line.stored_bytes for line in lines), sum(line.raw_bytes for line in lines)
    assert [slot.raw_bytes for slot in values.slots] == [1500 * 128 * 2] * 4
    # The rest are ids, meta, offsets and the index.
    assert 0.9 * stored < sum(slot.stored_bytes for slot in values.slots) < stored
    assert sum(slot.raw_bytes for slot in values.slots) < raw


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_codecs_that_do_not_store_slots_apart_say_nothing_of_them(tmp_path: Path, codec: str) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(0, 20)], codec=codec)
    values = values_of(paths)
    assert [slot.stored_bytes for slot in values.slots] == [0, 0, 0]
    assert all(slot.rms > 0 for slot in values.slots)


def test_damage_is_named_and_not_counted(tmp_path: Path) -> None:
    records = [random_record(row, 30, cuts=(10,)) for row in range(4)]
    paths = write_dataset(tmp_path / "set", records)
    whole = values_of(paths)
    index = DatasetIndex.load(paths)
    later = paths.stored_file(index.samples["s2"].parts[1].path)
    data = bytearray(later.read_bytes())
    data[len(data) // 2] ^= 1
    later.write_bytes(data)
    paths.stored_file(index.samples["s3"].parts[0].path).unlink()
    values = values_of(paths)
    assert (whole.samples, whole.tokens) == (4, 120)
    assert (values.samples, values.tokens) == (2, 60)
    assert sorted(text.partition(":")[0] for text in values.unreadable) == ["s2", "s3"]
    assert len(values.slots) == 3


def test_a_sample_with_nan_is_named(tmp_path: Path) -> None:
    record = random_record(0, 6)
    record.states[3, 1, 2] = float("nan")
    values = values_of(write_dataset(tmp_path / "set", [record, random_record(1, 6)]))
    assert list(values.unreadable) == ["s0: its states are not finite"]
    assert values.samples == 1


def test_some_samples_are_drawn_and_always_the_same(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path / "set", [random_record(row, 5 + row) for row in range(20)])
    first, again, none = values_of(paths, 4), values_of(paths, 4), values_of(paths, 0)
    assert first.samples == 4
    assert first.tokens == again.tokens
    assert list(none.slots) == []
    assert slot_names(dataset_info()) == ["boundary 1", "boundary 2", "last state"]
