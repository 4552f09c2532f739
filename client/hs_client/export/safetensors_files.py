"""Writing and reading safetensors files, with a full disk told as the `OSError` that it is."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from hs_client.export.layout import Ids

__all__ = ["read_safetensors_ids", "save_tensors"]

_OS_ERROR = re.compile(r"\(os error ([0-9]+)\)")


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write `tensors` to `path`; `metadata` has one entry at most, since the order of several would be left to chance.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        save_file(dict(tensors), str(path), metadata=dict(metadata) if metadata else None)
    except SafetensorError as error:
        known = _OS_ERROR.search(str(error))
        code = int(known[1]) if known else errno.EIO
        raise OSError(code, os.strerror(code) if known else str(error), str(path)) from None


def read_safetensors_ids(path: Path, key: str) -> Ids:
    """The int64 tensor `key` of a safetensors file; nothing else of it is read."""
    with safe_open(str(path), framework="np") as tensors:
        ids: Ids = tensors.get_tensor(key)
    return ids
