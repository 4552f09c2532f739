"""Reading a dataset: the done samples with their ids, loss mask and hidden states. Needs torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.index import BrokenSample, DatasetIndex, IndexedSample
from hs_formats.manifest import ManifestLine
from hs_formats.part import inspect_part
from hs_formats.stored import read_stored
from hs_formats.verified import VerifiedSet

__all__ = ["DamagedSample", "HiddenStateDataset", "Sample"]

_BITS = {"bfloat16": ("<i2", torch.int16), "float16": ("<i2", torch.int16), "float32": ("<i4", torch.int32)}
"""How to copy a dtype that numpy may lack: as integers of its size."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample of n tokens, or the rows and slots of it that were asked for.

    Attributes:
        sample_id: the input row's ``id``, or the hash that stands for it.
        input_ids: int64 [n].
        loss_mask: int64 [n], 1 where the token is trained on.
        hidden_states: the model's dtype, [n, k+1, H]; slots 0..k-1 are the dataset's boundaries ascending, slot k is
            the last state, after the final norm. Row t belongs to token t.
    """

    sample_id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden_states: torch.Tensor


class DamagedSample(FormatError):
    """Raised on access to a sample whose record is incomplete, missing or damaged; the text names it, and the file."""


class HiddenStateDataset(Dataset[Sample]):  # type: ignore[misc]  # torch has no stubs
    """All done samples of a dataset folder, by index or by sample id, decoded when asked for.

    A sample that is damaged keeps its place: only access to it raises. ``hs-client verify`` lists all of them. The list
    of samples is the one of the moment of opening, also in the workers of a DataLoader, forked or spawned, while a run
    goes on. Any number of threads may read at once.

    Args:
        path: the dataset folder.
        verified_only: leave out what ``hs-client verify`` has not found right.

    Raises:
        FormatError: the folder is no dataset, or its ``dataset.json`` or ``verified.json`` is damaged.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | Path, *, verified_only: bool = False) -> None:
        self.paths = DatasetPaths(Path(path))
        info = self.paths.read_info()
        if info is None:
            raise FormatError(f"{path} is no dataset: it has no dataset.json")
        if info.dtype not in _BITS:
            raise FormatError(f"{path} holds {info.dtype}, not one of {', '.join(_BITS)}")
        self.info = info
        self._index = DatasetIndex.load(self.paths)
        self._ids = self._index.sample_ids
        if verified_only:
            verified = VerifiedSet.read(self.paths)
            samples = self._index.samples
            self._ids = tuple(name for name in self._ids if name in samples and samples[name] in verified)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Sample]:
        return (self[sample_id] for sample_id in self._ids)

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids of the samples, in the order of their runs and rows."""
        return self._ids

    @property
    def samples(self) -> Mapping[str, IndexedSample]:
        """What is known of each sample without reading its data; broken ones are not in it."""
        return self._index.samples

    @property
    def broken(self) -> Mapping[str, BrokenSample]:
        """Samples that are done but have no whole record, known without reading data."""
        return self._index.broken

    def lengths(self) -> list[int]:
        """Number of tokens of each sample, by index, for samplers that group by length; 0 for broken ones."""
        known = self._index.samples
        return [known[sample_id].n if sample_id in known else 0 for sample_id in self._ids]

    def __getitem__(self, key: int | str) -> Sample:
        """Load one sample: `read` without a choice of rows and slots."""
        return self.read(key)

    def read(
        self, key: int | str, *, rows: tuple[int, int] | None = None, slots: Sequence[int] | None = None
    ) -> Sample:
        """Load a sample, or some of its rows and slots.

        Args:
            key: index or sample id.
            rows: tokens [start, stop) of the sample; all when missing. Parts without any of them are not touched.
            slots: which of the k+1 slots, in the order wanted, negative ones from the end; all when missing.

        Raises:
            IndexError: no such index, rows or slots.
            KeyError: no done sample has this id.
            DamagedSample: a file is missing or damaged, the text names sample and file; or the ids are not those that
                were sent.
            OSError: the dataset cannot be read.
        """
        if isinstance(key, str):
            sample_id = key
            if key not in self._index.samples and key not in self._index.broken:
                raise KeyError(key)
        else:
            sample_id = self._ids[key]
        sample = self._index.samples.get(sample_id)
        if sample is None:
            raise DamagedSample(self._index.broken[sample_id].reason)
        try:
            return self._load(sample, rows or (0, sample.n), slots)
        except (FormatError, FileNotFoundError) as error:
            raise DamagedSample(f"sample {sample_id!r} cannot be read: {error}") from error

    def _load(self, sample: IndexedSample, rows: tuple[int, int], slots: Sequence[int] | None) -> Sample:
        first, end = rows
        if not 0 <= first < end <= sample.n:
            raise IndexError(f"rows [{first}, {end}) of sample {sample.sample_id!r}, which has {sample.n}")
        count = len(self.info.boundaries) + 1
        picked = list(range(count)) if slots is None else [range(count)[slot] for slot in slots]
        bits, dtype = _BITS[self.info.dtype]
        ids = torch.empty(end - first, dtype=torch.int64)
        states = torch.empty((end - first, len(picked), self.info.hidden_size), dtype=dtype)
        for line in sample.parts:
            start, stop = line.name.start, line.name.stop
            if stop <= first or start >= end:
                continue
            of_part = slice(max(first, start) - start, min(end, stop) - start)
            of_sample = slice(max(first, start) - first, min(end, stop) - first)
            part_ids, part_states = self._load_part(line, bits)
            ids.numpy()[of_sample] = part_ids[of_part]
            rows_of_part = part_states[of_part]
            states.numpy()[of_sample] = rows_of_part if slots is None else rows_of_part[:, picked]
        if (first, end) == (0, sample.n) and xxh3_hex([ids.numpy().tobytes()]) != sample.ids_xxh3:
            raise FormatError(f"the stored ids are not the ones that {sample.rid} was sent")
        mask = torch.frombuffer(sample.mask(), dtype=torch.uint8)[first:end].to(torch.int64)
        return Sample(sample.sample_id, ids, mask, states.view(getattr(torch, self.info.dtype)))

    def _load_part(self, line: ManifestLine, bits: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids int64 [m] and states as integers [m, k+1, H]; views of the decoded file."""
        path = self.paths.stored_file(line.path)
        data = read_stored(path)
        if xxh3_hex([data]) != line.xxh3:
            raise FormatError(f"{path} is damaged: its content does not have the manifest's checksum")
        info = inspect_part(io.BytesIO(data), line.name)
        meta, wanted = info.meta, self.info
        if (meta.boundaries, meta.hidden_size, meta.dtype) != (wanted.boundaries, wanted.hidden_size, wanted.dtype):
            raise FormatError(
                f"{path} does not fit the dataset: boundaries {meta.boundaries}, H {meta.hidden_size}, {meta.dtype}"
            )
        ids, states = info.input_ids, info.hidden_states
        return (
            np.frombuffer(data, "<i8", ids.spec.count, ids.offset),
            np.frombuffer(data, bits, states.spec.count, states.offset).reshape(states.spec.shape),
        )
