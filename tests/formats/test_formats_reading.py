"""Training from a dataset: parts of samples, DataLoader workers, streams with threads, batches for EAGLE-3."""

from __future__ import annotations

import gc
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from hs_formats.collate import Eagle3Collator
from hs_formats.reader import DamagedSample, HiddenStateDataset, Sample
from hs_formats.streaming import SampleStream
from part_factory import dataset_info, random_record, write_dataset

RECORDS = [random_record(row, 2 + 3 * row, cuts=range(2, 2 + 3 * row, 4), mask=((1, 2),)) for row in range(8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    write_dataset(root, RECORDS)
    return root


def _equal(one: Sample, other: Sample) -> bool:
    tensors = ("input_ids", "loss_mask", "hidden_states")
    return one.sample_id == other.sample_id and all(torch.equal(getattr(one, t), getattr(other, t)) for t in tensors)


# -- parts of samples


@pytest.fixture(scope="module", params=["default", "fast", "zstd", "none"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HiddenStateDataset:
    """The same samples, as each codec stores them."""
    root = tmp_path_factory.mktemp("set")
    write_dataset(root, RECORDS, codec=request.param)
    return HiddenStateDataset(root)


@settings(max_examples=40)
@given(st.data())
def test_rows_and_slots_are_those_of_the_whole(stored: HiddenStateDataset, data: Any) -> None:
    dataset = stored
    index = data.draw(st.integers(0, 7))
    whole = dataset[index]
    n = len(whole.input_ids)
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    slots = data.draw(st.none() | st.lists(st.integers(-3, 2), min_size=1, max_size=4))
    part = dataset.read(index, rows=(start, stop), slots=slots)
    assert torch.equal(part.input_ids, whole.input_ids[start:stop])
    assert torch.equal(part.loss_mask, whole.loss_mask[start:stop])
    expected = whole.hidden_states[start:stop]
    assert torch.equal(part.hidden_states, expected if slots is None else expected[:, slots])


def test_one_slot_is_read_without_the_others(tmp_path: Path) -> None:
    """Damage in the planes of slot 0 is met by those who read it, and by nobody else."""
    states = torch.randn(600, 3, 64, generator=torch.Generator().manual_seed(1))
    record = replace(random_record(0, 600), states=states)
    paths = write_dataset(tmp_path, [record], info=dataset_info(hidden_size=64))
    (file,) = paths.data.rglob("hs-*")
    data = bytearray(file.read_bytes())
    data[len(data) // 8] ^= 1
    file.write_bytes(data)
    dataset = HiddenStateDataset(tmp_path)
    assert torch.equal(dataset.read(0, slots=[-1]).hidden_states[:, 0], states[:, -1])
    for slots in ([0], [2, 0], None):
        with pytest.raises(DamagedSample, match=file.name):
            dataset.read(0, slots=slots)


def test_only_the_files_of_the_rows_are_read(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, [random_record(0, 9, cuts=(4, 6))])
    first, *_ = sorted(paths.data.rglob("hs-*"))
    first.unlink()
    data = HiddenStateDataset(tmp_path)
    assert data.read(0, rows=(4, 9)).input_ids.shape == (5,)
    with pytest.raises(DamagedSample, match="s0"):
        data.read(0, rows=(3, 9))


@pytest.mark.parametrize(
    ("rows", "slots"), [((0, 0), None), ((-1, 1), None), ((0, 3), None), (None, [3]), (None, [-4])]
)
def test_what_is_not_there_is_an_index_error(folder: Path, rows: Any, slots: Any) -> None:
    with pytest.raises(IndexError):
        HiddenStateDataset(folder).read(0, rows=rows, slots=slots)


def test_lengths_are_known_without_reading(folder: Path) -> None:
    assert HiddenStateDataset(folder).lengths() == [2 + 3 * row for row in range(8)]


# -- DataLoader


def _first(samples: list[Sample]) -> Sample:
    (sample,) = samples
    return sample


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_workers_shuffled_three_epochs_give_the_same_tensors(folder: Path, method: str) -> None:
    dataset = HiddenStateDataset(folder)
    expected = {sample.sample_id: sample for sample in dataset}
    loader = DataLoader(
        dataset,
        batch_size=1,
        shuffle=True,
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
        collate_fn=_first,
        generator=torch.Generator().manual_seed(1),
    )
    orders = []
    for _ in range(3):
        found = list(loader)
        assert sorted(sample.sample_id for sample in found) == sorted(expected)
        assert all(_equal(sample, expected[sample.sample_id]) for sample in found)
        orders.append([sample.sample_id for sample in found])
    assert len({tuple(order) for order in orders}) == 3


def test_a_damaged_sample_names_itself_through_a_worker(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, RECORDS)
    next(iter(sorted(paths.data.rglob("hs-0000abcd-00000003*")))).write_bytes(b"nothing")
    loader = DataLoader(HiddenStateDataset(tmp_path), batch_size=1, num_workers=1, collate_fn=_first)
    found = iter(loader)
    assert [next(found).sample_id for _ in range(3)] == ["s0", "s1", "s2"]
    with pytest.raises(DamagedSample, match="'s3' cannot be read"):
        next(found)


def _tensors() -> int:
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())  # isinstance wakes lazy modules


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_reading_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path, [random_record(row, 40, states=torch.ones(40, 3, 4) * row) for row in range(4)])
    dataset = HiddenStateDataset(tmp_path)
    for sample in dataset:
        assert float(sample.hidden_states.mean()) == int(sample.sample_id[1:])
    gc.collect()
    files, threads = _open_files(), threading.active_count()
    tensors = _tensors()
    for _ in range(20):
        for stream in (iter(dataset), iter(SampleStream(dataset, seed=1))):
            assert len(list(stream)) == 4
    gc.collect()
    assert _open_files() == files
    assert threading.active_count() == threads
    assert _tensors() <= tensors


# -- streams


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_gives_each_sample_once_an_epoch(folder: Path, workers: int) -> None:
    dataset = HiddenStateDataset(folder)
    stream = SampleStream(dataset, seed=5, ahead=3)
    orders = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        found = list(DataLoader(stream, batch_size=1, num_workers=workers, collate_fn=_first))
        assert sorted(sample.sample_id for sample in found) == sorted(dataset.sample_ids)
        assert all(_equal(sample, dataset[sample.sample_id]) for sample in found)
        orders.append(stream.order())
    assert len({tuple(order) for order in orders}) == 3


def test_a_stream_without_seed_keeps_the_order(folder: Path) -> None:
    dataset = HiddenStateDataset(folder)
    assert tuple(sample.sample_id for sample in SampleStream(dataset)) == dataset.sample_ids


@given(st.integers(1, 9), st.none() | st.integers(0, 3), st.integers(0, 5))
def test_ranks_share_the_samples_evenly(folder: Path, world_size: int, seed: int | None, epoch: int) -> None:
    dataset = HiddenStateDataset(folder)
    shares = []
    for rank in range(world_size):
        stream = SampleStream(dataset, seed=seed, rank=rank, world_size=world_size)
        stream.set_epoch(epoch)
        assert len(stream) == len(stream.order()) == 8 // world_size
        shares += stream.order()
    assert len(set(shares)) == len(shares) == 8 - 8 % world_size


def test_no_more_is_decoded_than_allowed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = HiddenStateDataset(folder)
    begun: list[int] = []
    read = HiddenStateDataset.read

    def noted(self: HiddenStateDataset, key: int) -> Sample:
        begun.append(key)
        return read(self, key)

    monkeypatch.setattr(HiddenStateDataset, "read", noted)
    stream = iter(SampleStream(dataset, ahead=2, threads=3))
    next(stream)
    next(stream)
    assert set(begun) <= {0, 1, 2}
    stream.close()  # type: ignore[attr-defined]


def test_a_stream_stops_at_a_damaged_sample_or_goes_on_with_a_warning(tmp_path: Path) -> None:
    paths = write_dataset(tmp_path, RECORDS)
    next(iter(sorted(paths.data.rglob("hs-0000abcd-00000003*")))).unlink()
    dataset = HiddenStateDataset(tmp_path)
    with pytest.raises(DamagedSample, match="'s3'"):
        list(SampleStream(dataset))
    with pytest.warns(RuntimeWarning, match="'s3' cannot be read"):
        found = list(SampleStream(dataset, skip_damaged=True))
    assert [sample.sample_id for sample in found] == ["s0", "s1", "s2", "s4", "s5", "s6", "s7"]


@pytest.mark.parametrize("wrong", [{"ahead": 0}, {"threads": 0}, {"rank": 1}, {"rank": -1, "world_size": 2}])
def test_wrong_arguments_of_a_stream(folder: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="ahead"):
        SampleStream(HiddenStateDataset(folder), **wrong)  # type: ignore[arg-type]


# -- batches


def _sample(n: int, start: int = 0) -> Sample:
    """Token t has id 100 + t, its slots hold t + 0.0, t + 0.25 and t + 0.5 in both channels."""
    at = torch.arange(start, start + n)
    states = torch.stack([at + fraction for fraction in (0.0, 0.25, 0.5)], dim=1)[:, :, None].expand(n, 3, 2)
    return Sample("s", 100 + at, (at % 2 == 0).long(), states.to(torch.bfloat16))


def test_a_shifted_batch_pairs_each_state_with_the_next_token() -> None:
    batch = Eagle3Collator()([_sample(4), _sample(2)])
    assert batch["input_ids"].tolist() == [[101, 102, 103], [101, 0, 0]]
    assert batch["loss_mask"].tolist() == [[0, 1, 0], [0, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2]] * 2
    assert batch["hidden_states"][0].tolist() == [[t, t, t + 0.25, t + 0.25] for t in (0, 1, 2)]
    assert batch["target"][0].tolist() == [[t + 1.5] * 2 for t in (0, 1, 2)]
    assert batch["target"][1].tolist() == [[1.5, 1.5], [0, 0], [0, 0]]
    assert batch["hidden_states"].dtype == batch["target"].dtype == torch.bfloat16


def test_an_unshifted_batch_leaves_rows_with_their_tokens() -> None:
    batch = Eagle3Collator(shift=False, pad_to_multiple_of=4)([_sample(3), _sample(5)])
    assert batch["input_ids"].tolist() == [[100, 101, 102, 0, 0, 0, 0, 0], [100, 101, 102, 103, 104, 0, 0, 0]]
    assert batch["loss_mask"].tolist() == [[1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 0, 0]]
    assert batch["target"][0, :3, 0].tolist() == [0.5, 1.5, 2.5]
    assert batch["hidden_states"].shape == (2, 8, 4)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.none() | st.integers(1, 9), st.integers(1, 5)
)
def test_batches_hold_what_fits_and_nothing_else(
    lengths: list[int], shift: bool, max_length: int | None, multiple: int
) -> None:
    batch = Eagle3Collator(shift=shift, max_length=max_length, pad_to_multiple_of=multiple)(
        [_sample(n) for n in lengths]
    )
    rows = batch["attention_mask"].shape[1]
    assert rows % multiple == 0
    for at, n in enumerate(lengths):
        count = min(n, max_length or n) - shift
        assert batch["attention_mask"][at].tolist() == [1] * count + [0] * (rows - count)
        assert not batch["loss_mask"][at, count:].any()
        assert not batch["hidden_states"][at, count:].any()
        assert batch["input_ids"][at, :count].tolist() == list(range(100 + shift, 100 + shift + count))
        assert torch.equal(
            batch["target"][at, :count, 0], (torch.arange(shift, count + shift) + 0.5).to(torch.bfloat16)
        )


def test_a_loader_of_batches(folder: Path) -> None:
    dataset = HiddenStateDataset(folder)
    batches = list(DataLoader(dataset, batch_size=4, collate_fn=Eagle3Collator()))
    assert [batch["input_ids"].shape for batch in batches] == [(4, 10), (4, 22)]
    assert torch.equal(batches[1]["target"][3, :22], dataset[7].hidden_states[1:, -1])
    assert torch.equal(batches[1]["hidden_states"][3, :22], dataset[7].hidden_states[:-1, :-1].flatten(1))


def test_what_makes_no_batch() -> None:
    with pytest.raises(ValueError, match="no sample"):
        Eagle3Collator()([])
    one = Sample("s", torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64), torch.ones(2, 1, 4))
    with pytest.raises(ValueError, match="one slot"):
        Eagle3Collator()([one])
    with pytest.raises(ValueError, match="1 at least"):
        Eagle3Collator(max_length=0)
