"""Samples as a stream: decoded ahead by threads, shuffled by epoch, divided over ranks and DataLoader workers."""

from __future__ import annotations

import random
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torch.utils.data import IterableDataset, get_worker_info

from hs_formats.reader import DamagedSample, HiddenStateDataset, Sample

__all__ = ["SampleStream"]


class SampleStream(IterableDataset[Sample]):  # type: ignore[misc]  # torch has no stubs
    """The samples of a dataset one after the other, each once an epoch, decoded by threads before they are asked for.

    Decoding needs no Python lock, so threads do without worker processes and their copies between processes. With
    DataLoader workers each of them gives its share; over all of them every sample comes once.

    Args:
        dataset: whose samples.
        seed: shuffles, by this and the epoch; None keeps the dataset's order.
        ahead: samples that may lie decoded in memory, at least 1.
        threads: that decode.
        rank: which share of the samples, of `world_size`. All ranks get equally many; up to `world_size` - 1 samples
            are left out, others in each shuffled epoch.
        world_size: number of shares.
        skip_damaged: go on without a damaged sample, with a warning that names it; else iteration ends in
            `DamagedSample`.

    Raises:
        ValueError: `ahead`, `threads` or `rank` is out of range.
    """

    def __init__(
        self,
        dataset: HiddenStateDataset,
        *,
        seed: int | None = None,
        ahead: int = 4,
        threads: int = 2,
        rank: int = 0,
        world_size: int = 1,
        skip_damaged: bool = False,
    ) -> None:
        if ahead < 1 or threads < 1 or not 0 <= rank < world_size:
            raise ValueError(f"ahead {ahead}, threads {threads}, rank {rank} of {world_size}")
        self.dataset = dataset
        self.epoch = 0
        self._seed = seed
        self._ahead = ahead
        self._threads = threads
        self._rank = rank
        self._world_size = world_size
        self._skip_damaged = skip_damaged

    def set_epoch(self, epoch: int) -> None:
        """Shuffle by `epoch` from the next iteration on."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset) // self._world_size

    def order(self) -> list[int]:
        """Indices of this rank's samples in this epoch; the same in every worker."""
        indices = list(range(len(self.dataset)))
        if self._seed is not None:
            random.Random(f"{self._seed} {self.epoch}").shuffle(indices)  # noqa: S311  # no secret
        return indices[self._rank : len(self) * self._world_size : self._world_size]

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        indices = self.order()
        if worker is not None:
            indices = indices[worker.id :: worker.num_workers]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="hs-decode") as pool:
            pending: deque[Future[Sample]] = deque()
            try:
                for index in indices:
                    pending.append(pool.submit(self.dataset.read, index))
                    if len(pending) >= self._ahead:
                        yield from self._take(pending.popleft())
                while pending:
                    yield from self._take(pending.popleft())
            finally:  # also where the consumer stops early
                for future in pending:
                    future.cancel()

    def _take(self, future: Future[Sample]) -> Iterator[Sample]:
        try:
            sample = future.result()
        except DamagedSample as error:
            if not self._skip_damaged:
                raise
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)
        else:
            yield sample
