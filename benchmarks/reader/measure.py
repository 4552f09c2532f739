"""The measurement: all samples in one shuffled order, arm after arm, round after round, from the page cache."""

from __future__ import annotations

import gzip
import io
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.reader.made import make_samples, write_dataset, write_gz, write_pt
from hs_formats.reader import HiddenStateDataset
from hs_formats.streaming import SampleStream

__all__ = ["measure"]

Read = Callable[[], Iterator[tuple[int, torch.Tensor]]]
"""Gives every sample once: its number and its states [n, k+1, H], or a part of them."""


def measure(
    work: Path, samples_folder: Path, *, count: int, shape: tuple[int, int, int], rounds: int
) -> dict[str, Any]:
    """Seconds of each arm, a value for each round, after one round in which all that is read is compared."""
    torch.set_num_threads(1)
    samples = make_samples(samples_folder, count, shape)
    stored: dict[str, int] = {}
    arms: dict[str, Read] = {}
    order = list(range(count))
    random.Random(7).shuffle(order)
    for codec in ("default", "fast", "zstd", "none"):
        stored[codec] = write_dataset(work / codec, samples, codec)
        data = HiddenStateDataset(work / codec)
        arms[codec] = _by_index(data, order)
    data = HiddenStateDataset(work / "default")
    threads = len(os.sched_getaffinity(0))
    arms[f"default, {threads} threads ahead"] = _streamed(data, threads)
    arms["default, one slot"] = _one_slot(data, order)
    stored["pt"] = write_pt(work / "pt", samples)
    arms["pt"] = _torch_files(work / "pt", order)
    stored["ckpt.gz"] = write_gz(work / "gz", samples)
    arms["ckpt.gz"] = _gz_files(work / "gz", order)
    problems = [problem for name, read in arms.items() for problem in _compare(name, read(), samples)]
    seconds: dict[str, dict[str, list[float]]] = {name: {"wall_s": [], "cpu_s": []} for name in arms}
    for _ in range(rounds):
        for name, read in arms.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in read():
                pass
            seconds[name]["wall_s"].append(time.perf_counter() - wall)
            seconds[name]["cpu_s"].append(time.process_time() - cpu)
    return {
        "bytes": sum(states.nbytes for states in samples),
        "stored_bytes": stored,
        "arms": seconds,
        "problems": problems,
    }


def _compare(name: str, read: Iterable[tuple[int, torch.Tensor]], samples: list[torch.Tensor]) -> Iterator[str]:
    seen: set[int] = set()
    for at, states in read:
        seen.add(at)
        expected = samples[at] if states.shape[1] > 1 else samples[at][:, -1:]
        if not torch.equal(states.view(torch.int16), expected.contiguous().view(torch.int16)):
            yield f"{name}: sample {at} comes back otherwise"
    if len(seen) != len(samples):
        yield f"{name}: {len(seen)} of {len(samples)} samples came"


def _by_index(data: HiddenStateDataset, order: list[int]) -> Read:
    return lambda: ((at, data[str(at)].hidden_states) for at in order)


def _one_slot(data: HiddenStateDataset, order: list[int]) -> Read:
    return lambda: ((at, data.read(str(at), slots=[-1]).hidden_states) for at in order)


def _streamed(data: HiddenStateDataset, threads: int) -> Read:
    stream = SampleStream(data, seed=7, ahead=2 * threads, threads=threads)
    return lambda: ((int(sample.sample_id), sample.hidden_states) for sample in stream)


def _torch_files(folder: Path, order: list[int]) -> Read:
    return lambda: ((at, torch.load(folder / f"{at}.pt", weights_only=True)["hidden_states"]) for at in order)


def _gz_files(folder: Path, order: list[int]) -> Read:
    def read() -> Iterator[tuple[int, torch.Tensor]]:
        for at in order:
            with gzip.open(folder / f"{at}.ckpt.gz", "rb") as file:
                sample = torch.load(io.BytesIO(file.read()), weights_only=True)
            aux, last = sample["aux_hidden_state"][0], sample["hidden_state"][0]
            yield at, torch.cat([aux.unflatten(1, (-1, last.shape[1])), last[:, None]], dim=1)

    return read
