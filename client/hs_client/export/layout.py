"""What every export format provides, and the sample that it is given. Needs torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from hs_client.export.errors import WrongChoice
from hs_client.export.model_files import ModelFiles
from hs_client.export.samples import PlannedSample
from hs_client.export.settings import DTYPES, ExportSettings
from hs_client.export.vocabulary import TokenCounts, VocabularyMap, check_draft_size
from hs_formats.dataset import DatasetInfo

__all__ = ["ExportSample", "Finished", "Format", "Ids", "Job", "PerSample", "Unit", "grouped"]

Ids = npt.NDArray[np.int64]

_FILES_PER_FOLDER = 1000


@dataclass(frozen=True, slots=True)
class Unit:
    """One file of an export, made as a whole or not at all: samples [first, stop) of the plan."""

    path: str
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class ExportSample:
    """A sample as a format gets it.

    Attributes:
        planned: its place in the export.
        input_ids: int64 [n].
        loss_mask: int64 [n].
        states: the export's dtype, [n, k+1, H].
        stored: the same in the dataset's dtype.
    """

    planned: PlannedSample
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    states: torch.Tensor
    stored: torch.Tensor

    @property
    def aux(self) -> torch.Tensor:
        """[n, k*H], the boundaries ascending; a tensor of its own, since saving a view would save all it views."""
        return self.states[:, :-1].flatten(1).clone(memory_format=torch.contiguous_format)

    @property
    def last(self) -> torch.Tensor:
        """[n, H], after the final norm; a tensor of its own."""
        return self.states[:, -1].clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class Job:
    """What a format knows of the export that it writes; `out` is absolute."""

    settings: ExportSettings
    info: DatasetInfo
    model: ModelFiles
    samples: Sequence[PlannedSample]

    @property
    def out(self) -> Path:
        """The export's folder."""
        return self.settings.out

    @property
    def eagle_ids(self) -> list[int]:
        """The boundaries as ids of the layer whose output they are."""
        return [b - 1 for b in self.info.boundaries]

    @property
    def longest(self) -> int:
        """Tokens of the longest sample: a trainer with a lower limit cuts silently."""
        return max((sample.n for sample in self.samples), default=0)

    def default_boundaries(self) -> bool:
        """Whether the boundaries are those that trainers take when told nothing."""
        layers = self.info.num_layers
        return self.info.boundaries == [2, layers // 2, layers - 3]


@dataclass(frozen=True, slots=True)
class Finished:
    """What is known once every file is there."""

    counts: TokenCounts
    vocabulary: VocabularyMap | None
    draft_config: Mapping[str, Any]


class Format(ABC):
    """One trainer's files. All methods but `write` run in one thread.

    Attributes:
        algorithms: kinds of draft model whose files can be written.
        dtypes: dtypes of states that the trainer takes.
        maps_vocabulary: whether it takes a vocabulary map.
    """

    algorithms: ClassVar[tuple[str, ...]] = ("eagle3",)
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    maps_vocabulary: ClassVar[bool] = True

    def __init__(self, job: Job) -> None:
        self.job = job

    def check(self) -> None:
        """Refuse what this trainer cannot take, before anything is written.

        Raises:
            HsError: one of the classes of `hs_client.export.errors`.
        """
        settings = self.job.settings
        if settings.algorithm not in self.algorithms:
            raise WrongChoice(
                format=settings.format,
                reason=f"--algorithm {settings.algorithm} is not one of {', '.join(self.algorithms)}",
            )
        if settings.dtype not in self.dtypes:
            raise WrongChoice(
                format=settings.format,
                reason=f"its trainer does not take {settings.dtype}, only {', '.join(self.dtypes)}",
            )
        if settings.draft_vocab_size and not self.maps_vocabulary:
            raise WrongChoice(format=settings.format, reason="it has no vocabulary map; leave --draft-vocab-size out")
        if settings.draft_vocab_size:
            check_draft_size(settings.draft_vocab_size, self.job.model.vocab_size)
        if settings.fp8 and settings.format != "speculators":
            raise WrongChoice(format=settings.format, reason="--fp8 is for speculators alone")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Plain values for the record: names, shapes, norm point, layer ids."""

    @abstractmethod
    def units(self) -> list[Unit]:
        """The files of the samples, in the order of the plan."""

    @abstractmethod
    def write(self, path: Path, samples: Iterator[ExportSample]) -> dict[str, int]:
        """Write one unit's samples to `path`; returns facts for the record, of which the largest count.

        Called in several threads at once.

        Raises:
            BadSample: a sample cannot be written in this format.
            OSError: the disk cannot take it.
        """

    @abstractmethod
    def read_ids(self, path: Path, samples: Sequence[PlannedSample]) -> Iterator[Ids]:
        """The token ids of a unit's samples, read back from its file without the states."""

    def add_row(self, ids: Ids, mask: npt.NDArray[np.bool_]) -> None:
        """Called for each sample in order, after all files are there."""
        del ids, mask

    def finish(self, finished: Finished) -> None:
        """Write what is shared by all samples."""
        del finished

    @abstractmethod
    def command(self) -> list[str]:
        """The trainer's command, a line each, and what to know of it as ``# ...`` lines."""


class PerSample(Format):
    """A format with a file for each sample."""

    @abstractmethod
    def write_one(self, path: Path, sample: ExportSample) -> dict[str, int]:
        """As `write`, for one sample."""

    @abstractmethod
    def ids_of(self, path: Path) -> Ids:
        """The token ids [n] in a file."""

    def write(self, path: Path, samples: Iterator[ExportSample]) -> dict[str, int]:
        """Write the one sample."""
        return self.write_one(path, next(samples))

    def read_ids(self, path: Path, samples: Sequence[PlannedSample]) -> Iterator[Ids]:
        """The one sample's ids."""
        del samples
        yield self.ids_of(path)


def grouped(samples: Sequence[PlannedSample], pattern: str) -> list[Unit]:
    """A file for each sample, a thousand to a folder; `pattern` has ``{folder}`` and ``{index}``."""
    width = max(8, math.ceil(math.log10(len(samples) + 1)))
    return [
        Unit(pattern.format(folder=f"{at // _FILES_PER_FOLDER:0{width - 3}d}", index=f"{at:0{width}d}"), at, at + 1)
        for at in range(len(samples))
    ]
