"""AngelSlim 0.5 reads the export with its own loader."""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from export_sets import ExportSet

if importlib.util.find_spec("angelslim") is None:
    pytest.skip("could not import 'angelslim'", allow_module_level=True)


def loader() -> Any:
    """Their dataset module. The wheel of 0.5.0 lacks a module that its packages import, so they are left out."""
    (spec,) = [importlib.util.find_spec("angelslim")]
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (base,) = spec.submodule_search_locations
    for name in ("", ".compressor", ".compressor.speculative", ".compressor.speculative.train"):
        module = types.ModuleType(f"angelslim{name}")
        module.__path__ = [base + name.replace(".", "/")]
        sys.modules[module.__name__] = module
    from angelslim.compressor.speculative.train.data.dataset_builder import offline_dataset_builder

    return offline_dataset_builder


def test_every_sample_is_what_was_stored(exported: Any, states: ExportSet) -> None:
    out: Path = exported("angelslim")
    builder = loader().OfflineLLMDatasetBuilder()
    found = builder.build_dataset(str(out / "data"))
    assert len(found) == len(states.records)
    for at, record in enumerate(states.records.values()):
        sample = found[at]
        assert sample["input_ids"].tolist() == [list(record.ids)]
        ((start, stop),) = record.mask
        assert sample["loss_mask"].tolist() == [[int(start <= t < stop) for t in range(len(record.ids))]]
        assert torch.equal(sample["target_hiddens"], record.states[None, :, -1])
        assert torch.equal(sample["hidden_states"], record.states[None, :, :-1].flatten(2))
    batch = builder.get_data_collator()([found[at] for at in range(len(found))])
    assert batch["hidden_states"].shape == (4, 60, 3 * 128)
    maps = torch.load(out / "data" / "vocab_mapping.pt", weights_only=True)
    assert (maps["d2t"].dtype, int(maps["t2d"].sum())) == (torch.int64, 128)
