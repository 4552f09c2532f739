"""Reading a dataset: the done samples with their ids, loss mask and hidden states. Needs torch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from hs_formats.dataset import dataset_paths
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.index import BrokenSample, DatasetIndex, IndexedSample
from hs_formats.layout import part_layout
from hs_formats.location import ObjectUrl
from hs_formats.manifest import ManifestLine
from hs_formats.part import PartMeta, inspect_part
from hs_formats.stored import Original, Stored, open_stored
from hs_formats.verified import VerifiedSet

__all__ = ["DamagedSample", "HiddenStateDataset", "Sample"]

_BITS = {"bfloat16": ("<u2", torch.int16), "float16": ("<u2", torch.int16), "float32": ("<u4", torch.int32)}
"""How to copy a dtype that numpy may lack: as integers of its size."""

_Array = npt.NDArray[Any]


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
    """All done samples of a dataset, by index or by sample id, decoded when asked for.

    A sample that is damaged keeps its place: only access to it raises. ``hs-client verify`` lists all of them. The list
    of samples is the one of the moment of opening, also in the workers of a DataLoader, forked or spawned, while a run
    goes on. Any number of threads may read at once.

    Args:
        path: the dataset folder, or its URL in an object store, such as ``s3://bucket/data/prompts``. Of that the books
            are fetched when it is opened; of the parts only what is asked for, through a bounded cache in memory.
        verified_only: leave out what ``hs-client verify`` has not found right.

    Raises:
        FormatError: the folder is no dataset, or its ``dataset.json`` or ``verified.json`` is damaged.
        HsError: an object store cannot be used as the environment has it.
        OSError: it cannot be read.
    """

    def __init__(self, path: str | Path | ObjectUrl, *, verified_only: bool = False) -> None:
        self.paths = dataset_paths(path)
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
            wanted = max(first, start) - start, min(end, stop) - start
            target = slice(max(first, start) - first, min(end, stop) - first)
            own = None if slots is None and wanted == (0, stop - start) else picked
            self._load_part(line, wanted, own, ids.numpy()[target], states.numpy()[target].view(bits))
        if (first, end) == (0, sample.n) and xxh3_hex([ids.numpy().tobytes()]) != sample.ids_xxh3:
            raise FormatError(f"the stored ids are not the ones that {sample.rid} was sent")
        mask = torch.frombuffer(sample.mask(), dtype=torch.uint8)[first:end].to(torch.int64)
        return Sample(sample.sample_id, ids, mask, states.view(getattr(torch, self.info.dtype)))

    def _load_part(
        self, line: ManifestLine, rows: tuple[int, int], slots: list[int] | None, ids_out: _Array, states_out: _Array
    ) -> None:
        """Rows [start, stop) of a part; `slots` None for all of the part, which then may be decoded as a whole."""
        path = self.paths.stored(line.path)
        start, stop = rows
        with open_stored(path) as original:
            # What a stored file states of its original holds for each piece of it; else only the whole can be checked.
            if slots is not None and original.xxh3 == line.xxh3:
                info = inspect_part(_RawOriginal(original), line.name)  # type: ignore[arg-type]
                floats = part_layout(info, original.size).floats
                if floats:
                    self._check_meta(path, info.meta)
                    original.read_into(info.input_ids.offset + 8 * start, ids_out.data.cast("B"))
                    for at, slot in enumerate(slots):
                        original.read_slot(floats[0], slot, start, states_out[:, at])
                    return
            data = bytearray(original.size)
            original.read_all(data)
            if (original.xxh3 or xxh3_hex([data])) != line.xxh3:
                raise FormatError(f"{path} is damaged: its content does not have the manifest's checksum")
        info = inspect_part(io.BytesIO(data), line.name)
        self._check_meta(path, info.meta)
        spec = info.hidden_states.spec
        words = np.frombuffer(data, states_out.dtype, spec.count, info.hidden_states.offset).reshape(spec.shape)
        ids_out[:] = np.frombuffer(data, "<i8", info.input_ids.spec.count, info.input_ids.offset)[start:stop]
        states_out[:] = words[start:stop] if slots is None else words[start:stop, slots]

    def _check_meta(self, path: Stored, meta: PartMeta) -> None:
        wanted = self.info
        if (meta.boundaries, meta.hidden_size, meta.dtype) != (wanted.boundaries, wanted.hidden_size, wanted.dtype):
            raise FormatError(
                f"{path} does not fit the dataset: boundaries {meta.boundaries}, H {meta.hidden_size}, {meta.dtype}"
            )


class _RawOriginal(io.RawIOBase):
    """The original of a stored file as a file, for the few kilobytes that say where its tensors lie.

    Unbuffered: reading on would decode what nobody asked for.
    """

    def __init__(self, original: Original) -> None:
        self._original = original
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._original.size}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._original.size - self._at))
        if count:
            self._original.read_into(self._at, view[:count])
            self._at += count
        return count
