"""ModelOpt 0.47 reads the export with its own loader and recipe."""

# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from export_sets import ExportSet

pytest.importorskip("modelopt.torch.speculative.eagle.utils")


@pytest.fixture(scope="module")
def out(exported: Any) -> Path:
    folder: Path = exported("modelopt")
    return folder


def test_every_sample_is_what_was_stored(out: Path, states: ExportSet) -> None:
    from modelopt.torch.speculative.eagle.utils import EagleOfflineDataCollator, OfflineSupervisedDataset

    files = [str(file) for file in (out / "data").rglob("*.pt")]
    assert len(files) == len(states.records)
    found = OfflineSupervisedDataset(sorted(files), answer_only_loss=True)
    for at, record in enumerate(states.records.values()):
        sample = found[at]
        assert sample["input_ids"].tolist() == list(record.ids)
        ((start, stop),) = record.mask
        assert sample["loss_mask"].tolist() == [int(start <= t < stop) for t in range(len(record.ids))]
        assert torch.equal(sample["base_model_hidden_states"], record.states[:, -1])
        assert torch.equal(sample["aux_hidden_states"], record.states[:, :-1].flatten(1))
        assert sample["base_hidden_prenorm"] is False
    batch = EagleOfflineDataCollator(64)([found[at] for at in range(len(found))])
    assert batch["base_model_outputs"]["aux_hidden_states"].shape == (4, 64, 3 * 128)


def test_the_recipe_is_theirs(out: Path) -> None:
    from modelopt.recipe import load_recipe

    recipe = load_recipe(str(out / "recipe.yaml"))
    assert type(recipe).__name__ == "ModelOptEagleRecipe"
    assert recipe.data.mode == "offline"
    assert recipe.training.answer_only_loss is True
    assert recipe.eagle.eagle_architecture_config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    d2t = torch.load(recipe.data.draft_vocab_cache, weights_only=True)
    assert (d2t.shape, d2t.dtype) == ((128,), torch.int64)
