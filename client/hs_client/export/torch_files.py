"""One sample in one zip-format ``torch.save`` file, which SpecForge, ModelOpt, AngelSlim and ``pt`` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch

from hs_client.export.layout import Ids
from hs_formats.durable import write_all

__all__ = ["read_torch_ids", "save"]


def save(path: Path, content: Mapping[Any, Any] | torch.Tensor) -> None:
    """`torch.save`, with the same bytes whatever the file is called.

    Raises:
        OSError: the file cannot be written.
    """
    # Given a path, torch names the folder inside the zip after it; given a file, it is always the same.
    with path.open("wb", buffering=0) as raw:
        file = _Remembering(raw)
        try:
            torch.save(content, cast("IO[bytes]", file))  # torch asks for write() and flush() alone
        except RuntimeError:
            if file.error is not None:
                raise file.error from None
            raise


class _Remembering:
    """A file for torch's zip writer, which turns whatever goes wrong below it into a RuntimeError about positions."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes | memoryview) -> int:
        """All of `data`, or an `OSError` that is remembered."""
        try:
            return write_all(self._file.fileno(), [data])
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        """Nothing is buffered."""


def read_torch_ids(path: Path) -> Ids:
    """``input_ids`` of such a file, one-dimensional; the states are mapped and not read."""
    content = torch.load(path, weights_only=True, mmap=True)
    ids: Ids = content["input_ids"].reshape(-1).numpy().copy()
    return ids
