"""A real model's states, exported once for each trainer; every module here needs that trainer's own package."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from export_sets import ExportSet
from hs_server.cpu_profile import torchvision_schemas

if find_spec("specforge") is not None:  # else every module here is skipped
    torchvision_schemas.install()

DRAFT_VOCAB = 128

Exporter = Callable[..., Path]


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> ExportSet:
    """The dataset, its model's folder with an index file, without which SpecForge does not read a target."""
    from real_states import real_set

    root = tmp_path_factory.mktemp("trainers")
    found = real_set(root)
    model = root / "model"
    shutil.copytree(found.model, model)
    with (model / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        names = [name for name in json.loads(file.read(size)) if name != "__metadata__"]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    return replace(found, model=model)


@pytest.fixture(scope="session")
def draft_config(states: ExportSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-layer EAGLE-3 draft of the model's shape, as SpecForge takes it."""
    target = json.loads((states.model / "config.json").read_text())
    kept = (
        *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size", "head_dim"),
        *("max_position_embeddings", "rms_norm_eps", "hidden_act", "bos_token_id", "eos_token_id"),
    )
    draft = {key: target[key] for key in kept} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
    }
    path = tmp_path_factory.mktemp("draft") / "draft.json"
    path.write_text(json.dumps(draft))
    return path


@pytest.fixture(scope="session")
def exported(states: ExportSet, draft_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """Exports the dataset in a format; keyword arguments are settings."""
    from hs_client.export.command import export_command
    from hs_client.export.settings import ExportSettings

    def export(format_name: str, **changes: object) -> Path:
        out = tmp_path_factory.mktemp(format_name) / "out"
        settings = ExportSettings(
            dataset=states.root,
            out=out,
            format=format_name,
            model=str(states.model),
            draft_vocab_size=0 if format_name == "deepspec" else DRAFT_VOCAB,
            draft_config=draft_config,
        )
        assert export_command(replace(settings, **changes), print) == 0  # type: ignore[arg-type]
        return out

    return export
