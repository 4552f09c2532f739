"""A Hugging Face dataset folder (``Dataset.save_to_disk``) of token ids and loss masks, written row by row.

`datasets` itself would hold all rows in memory or copy them through its cache; what it reads is one Arrow stream and
two small JSON files.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hs_formats.durable import write_durable

__all__ = ["ArrowFolder"]

_ROWS_PER_BATCH = 256
_FEATURES: dict[str, Any] = {
    "input_ids": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"},
    "loss_mask": {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"},
    "seq_len": {"dtype": "int64", "_type": "Value"},
}


class ArrowFolder:
    """Columns ``input_ids`` and ``loss_mask``, lists of int64, and ``seq_len``; read as torch tensors.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._data = folder / "data-00000-of-00001.arrow"
        self._temporary = folder / f".{self._data.name}.tmp"
        metadata = {"huggingface": json.dumps({"info": {"features": _FEATURES}})}
        self._schema = pa.schema(
            [
                ("input_ids", pa.list_(pa.int64())),
                ("loss_mask", pa.list_(pa.int64())),
                ("seq_len", pa.int64()),
            ],
            metadata=metadata,
        )
        self._sink = self._temporary.open("wb")
        self._writer = pa.ipc.new_stream(self._sink, self._schema)
        self._rows: list[dict[str, Any]] = []
        self._digest = hashlib.sha256()

    def add(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.bool_]) -> None:
        """Append a row; `ids` and `mask` [n]."""
        self._digest.update(ids.tobytes())
        self._rows.append({"input_ids": ids, "loss_mask": mask.astype(np.int64), "seq_len": len(ids)})
        if len(self._rows) == _ROWS_PER_BATCH:
            self._flush()

    def close(self) -> None:
        """Complete the folder, durably."""
        self._flush()
        self._writer.close()
        self._sink.flush()
        os.fsync(self._sink.fileno())
        self._sink.close()
        self._temporary.rename(self._data)
        info = {"citation": "", "description": "", "features": _FEATURES, "homepage": "", "license": ""}
        write_durable(self._folder / "dataset_info.json", json.dumps(info, indent=2).encode())
        state: dict[str, Any] = {
            "_data_files": [{"filename": self._data.name}],
            "_fingerprint": self._digest.hexdigest()[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": False,
            "_split": None,
        }
        write_durable(self._folder / "state.json", json.dumps(state, indent=2).encode())

    def _flush(self) -> None:
        if self._rows:
            columns = [pa.array([row[field.name] for row in self._rows], field.type) for field in self._schema]
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
            self._rows.clear()
