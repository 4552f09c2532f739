"""One sample in one zip-format ``torch.save`` file, which SpecForge, ModelOpt, AngelSlim and ``pt`` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hs_client.export.layout import Ids

__all__ = ["read_torch_ids", "save"]


def save(path: Path, content: Mapping[Any, Any] | torch.Tensor) -> None:
    """`torch.save`, with the same bytes whatever the file is called.

    Raises:
        OSError: the file cannot be written.
    """
    # Given a path, torch names the folder inside the zip after it; given a file, it is always the same.
    with path.open("wb") as file:
        torch.save(content, file)


def read_torch_ids(path: Path) -> Ids:
    """``input_ids`` of such a file, one-dimensional; the states are mapped and not read."""
    content = torch.load(path, weights_only=True, mmap=True)
    ids: Ids = content["input_ids"].reshape(-1).numpy().copy()
    return ids
