"""Reading a dataset: the done samples with their ids, loss mask and hidden states. Needs torch."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from hs_formats.dataset import DatasetPaths
from hs_formats.errors import FormatError
from hs_formats.hashing import xxh3_hex
from hs_formats.index import DatasetIndex, IndexedSample
from hs_formats.manifest import ManifestLine
from hs_formats.part import inspect_part
from hs_formats.stored import read_stored

__all__ = ["HiddenStateDataset", "Sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample of n tokens.

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


class HiddenStateDataset:
    """All done samples of a dataset folder, by index or by sample id, decoded when asked for.

    Args:
        path: the dataset folder.

    Raises:
        FormatError: the folder is no dataset, or its manifest lacks parts of a done sample.
    """

    def __init__(self, path: str | Path) -> None:
        self.paths = DatasetPaths(Path(path))
        info = self.paths.read_info()
        if info is None:
            raise FormatError(f"{path} is no dataset: it has no dataset.json")
        self.info = info
        self._index = DatasetIndex.load(self.paths)
        self._ids = list(self._index.samples)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Sample]:
        return (self[sample_id] for sample_id in self._ids)

    @property
    def sample_ids(self) -> tuple[str, ...]:
        """Ids of all done samples, in the order of their runs and rows."""
        return tuple(self._ids)

    def __getitem__(self, key: int | str) -> Sample:
        """Load one sample.

        Raises:
            IndexError: no such index.
            KeyError: no done sample has this id.
            FormatError: stored bytes are damaged, the text names the file; or the ids are not those that were sent.
            OSError: a stored file is missing or cannot be read.
        """
        return self._load(self._index.samples[key if isinstance(key, str) else self._ids[key]])

    def _load(self, sample: IndexedSample) -> Sample:
        info = self.info
        ids = torch.empty(sample.n, dtype=torch.int64)
        states = torch.empty((sample.n, len(info.boundaries) + 1, info.hidden_size), dtype=getattr(torch, info.dtype))
        for line in sample.parts:
            start, stop = line.name.start, line.name.stop
            part_ids, part_states = self._load_part(line)
            ids[start:stop] = part_ids
            states[start:stop] = part_states
        if xxh3_hex([ids.numpy().tobytes()]) != sample.ids_xxh3:
            raise FormatError(
                f"sample {sample.sample_id!r}: the stored ids are not the ones that {sample.rid} was sent"
            )
        mask = torch.frombuffer(sample.mask(), dtype=torch.uint8).to(torch.int64)
        return Sample(sample.sample_id, ids, mask, states)

    def _load_part(self, line: ManifestLine) -> tuple[torch.Tensor, torch.Tensor]:
        path = self.paths.stored_file(line.path)
        data = bytearray(read_stored(path))
        if xxh3_hex([data]) != line.xxh3:
            raise FormatError(f"{path} is damaged: its content does not have the manifest's checksum")
        info = inspect_part(io.BytesIO(data), line.name)
        meta = info.meta
        if (meta.boundaries, meta.hidden_size, meta.dtype) != (
            self.info.boundaries,
            self.info.hidden_size,
            self.info.dtype,
        ):
            raise FormatError(
                f"{path} does not fit the dataset: boundaries {meta.boundaries}, H {meta.hidden_size}, {meta.dtype}"
            )
        tensors = [
            torch.frombuffer(
                data, dtype=getattr(torch, span.spec.dtype), count=span.spec.count, offset=span.offset
            ).view(span.spec.shape)
            for span in (info.input_ids, info.hidden_states)
        ]
        return tensors[0], tensors[1]
