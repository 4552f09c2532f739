"""Models are told apart by configuration and weights, and by nothing that does not matter."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

from hs_server.capture.identity import model_hash


def model(folder: Path, *, weights: bytes, hidden: int = 64, name: str = "x") -> str:
    folder.mkdir()
    config = {"hidden_size": hidden, "_name_or_path": name, "transformers_version": name}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "README.md").write_text(name)
    return str(folder)


def test_a_copy_is_the_same_model_and_other_weights_or_configurations_are_not(tmp_path: Path) -> None:
    weights = os.urandom(1 << 20)
    first = model_hash(None, model(tmp_path / "a", weights=weights))
    assert model_hash(None, model(tmp_path / "b", weights=weights, name="elsewhere")) == first
    trained = bytes(byte ^ 1 for byte in weights)  # same size, same header, every value a little different
    assert model_hash(None, model(tmp_path / "c", weights=trained)) != first
    assert model_hash(None, model(tmp_path / "d", weights=weights, hidden=65)) != first
    assert model_hash(None, model(tmp_path / "e", weights=weights[:-1])) != first
    assert len(first) == 32


def test_tiny_and_missing_weight_files_are_no_fault(tmp_path: Path) -> None:
    assert model_hash(None, model(tmp_path / "a", weights=b"")) != model_hash(None, model(tmp_path / "b", weights=b"1"))


def test_a_hub_model_is_named_by_its_commit() -> None:
    def config(commit: str) -> SimpleNamespace:
        return SimpleNamespace(to_dict=lambda: {"hidden_size": 64}, _commit_hash=commit)

    assert model_hash(config("one"), "some/model") == model_hash(config("one"), "other/name")
    assert model_hash(config("one"), "some/model") != model_hash(config("two"), "some/model")
