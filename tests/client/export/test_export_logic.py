"""Casts, vocabulary maps, layer ids for a serving engine, the model's files: pure logic of an export."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file

from export_sets import norm_model
from hs_client.export.casting import Cast
from hs_client.export.errors import BadSample, NoModel
from hs_client.export.model_files import ModelFiles, norm_key
from hs_client.export.serving import draft_ids, merged
from hs_client.export.settings import Serving, parse_serving
from hs_client.export.vocabulary import TokenCounts, vocabulary_map
from hs_formats.boundaries import sglang_draft_ids
from hs_formats.errors import UsageError

# -- casts


def test_nothing_is_touched_where_the_dtype_stays() -> None:
    states = torch.randn(4, 3, 8).to(torch.bfloat16)
    cast = Cast("bfloat16", "bfloat16")
    assert cast.apply("s", states) is states
    assert cast.note == "none: the stored values, bit for bit"


@pytest.mark.parametrize("target", ["bfloat16", "float16", "float32"])
def test_a_cast_is_torchs_and_is_named(target: str) -> None:
    states = torch.randn(4, 3, 8) * 100
    cast = Cast("float32", target)
    assert torch.equal(cast.apply("s", states), states.to(getattr(torch, target)))
    assert cast.note.startswith("none" if target == "float32" else f"float32 to {target}, rounded")
    assert Cast("bfloat16", "float32").note == "bfloat16 to float32, exact"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_never_exported(value: float) -> None:
    for target in ("bfloat16", "float32"):
        states = torch.zeros(5, 3, 8, dtype=torch.bfloat16)
        states[3, 1, 2] = value
        with pytest.raises(BadSample, match="sample 's' cannot be exported: a stored state is NaN or infinite"):
            Cast("bfloat16", target).apply("s", states)


def test_a_cast_never_makes_infinity() -> None:
    states = torch.full((1, 2, 3), -70_000.0)
    with pytest.raises(BadSample, match=r"its largest state, 7e\+04, is too large for float16"):
        Cast("float32", "float16").apply("s", states)


# -- vocabulary maps

Rows = st.lists(st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=20), max_size=8)


@settings(deadline=None)
@given(rows=Rows, draft=st.integers(1, 40))
def test_the_map_keeps_the_most_frequent_supervised_tokens(rows: list[list[tuple[int, bool]]], draft: int) -> None:
    counts = TokenCounts()
    plain: Counter[int] = Counter()
    for row in rows:
        ids, mask = (np.array(column) for column in zip(*row, strict=True))
        counts.add(ids.astype(np.int64), mask.astype(np.bool_))
        plain.update(token for token, trained in row if trained)
    assert counts.nonzero() == dict(sorted(plain.items()))
    found = vocabulary_map(counts.counts, draft, 40)
    wanted = sorted(sorted(range(40), key=lambda token: (-plain[token], token))[:draft])
    assert (np.arange(draft) + found.d2t).tolist() == wanted == np.flatnonzero(found.t2d).tolist()
    assert (str(found.d2t.dtype), str(found.t2d.dtype), len(found.t2d)) == ("int64", "bool", 40)
    assert (found.covered, found.total) == (sum(plain[token] for token in wanted), plain.total())


def test_a_vocabulary_that_does_not_fit_is_refused() -> None:
    counts = TokenCounts()
    counts.add(np.array([1, 700]), np.array([True, True]))
    with pytest.raises(UsageError, match="--draft-vocab-size 513: the model's vocabulary has 512 tokens"):
        vocabulary_map(counts.counts, 513, 512)
    with pytest.raises(UsageError, match="token 700 is trained on, and the model's vocabulary has 512 tokens"):
        vocabulary_map(counts.counts, 64, 512)
    unseen = TokenCounts()
    unseen.add(np.array([1, 700]), np.array([True, False]))
    assert vocabulary_map(unseen.counts, 64, 512).covered == 1


# -- layer ids


def as_sglang(ids: list[int], *, conditional: bool) -> list[int]:
    """What its `set_eagle3_layers_to_capture` makes of a draft config's ids."""
    return [i + 1 for i in ids] if not conditional or ids[0] == 1 else ids


@given(
    boundaries=st.lists(st.integers(1, 60), min_size=1, max_size=5, unique=True).map(sorted), conditional=st.booleans()
)
def test_the_engine_captures_the_boundaries(boundaries: list[int], conditional: bool) -> None:
    ids = sglang_draft_ids(boundaries, conditional=conditional)
    if ids is None:
        assert conditional
        assert boundaries[0] == 1
    else:
        assert as_sglang(ids, conditional=conditional) == boundaries


@pytest.mark.parametrize(
    ("serving", "architecture", "ids"),
    [
        ("sglang:0.5.12", "KimiK25ForConditionalGeneration", [2, 30, 58]),
        ("sglang:0.5.13", "KimiK25ForConditionalGeneration", [3, 31, 59]),
        ("sglang:0.5.20", "DeepseekV3ForCausalLM", [3, 31, 59]),
        ("sglang:0.5.20", "LlamaForCausalLM", [2, 30, 58]),
        ("sglang:0.5.10.post1", "LlamaForCausalLM", [2, 30, 58]),
        ("vllm:0.12.0", "DeepseekV3ForCausalLM", [3, 31, 59]),
    ],
)
def test_layer_ids_by_engine_version_and_model(serving: str, architecture: str, ids: list[int]) -> None:
    found = draft_ids([3, 31, 59], parse_serving(serving), architecture)
    assert found.ids == ids
    config = found.config()
    nested = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}
    assert config == ({"eagle_config": nested} if "sglang" in serving else {"eagle_aux_hidden_state_layer_ids": ids})


def test_boundaries_that_no_list_names() -> None:
    found = draft_ids([1, 31, 59], Serving("sglang", (0, 5, 20)), "DeepseekV3ForCausalLM")
    assert found.ids is None
    assert found.config() == {}


def test_the_rule_is_the_installed_sglangs() -> None:
    """The classes said to go by the first id do so in their source, and no other one does."""
    import importlib.util
    import re

    from hs_client.export.serving import _CONDITIONAL

    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("SGLang is not installed")
    models = Path(next(iter(spec.submodule_search_locations))) / "srt" / "models"
    sources = {path.stem: path.read_text() for path in models.glob("*.py")}
    rule = re.compile(r"if layer_ids and layer_ids\[0\] == 1:")
    assert {name for name, text in sources.items() if rule.search(text)} == {"deepseek_v2", "glm4_moe_lite"}
    heirs = {"DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"}
    bases = [found for text in sources.values() for found in re.findall(r"^class (\w+)\((\w+)\)", text, re.MULTILINE)]
    while more := {name for name, base in bases if base in heirs} - heirs:
        heirs |= more
    drafts = ("NextN", "Eagle")
    assert {name for name in heirs if not name.endswith(drafts)} <= _CONDITIONAL
    assert "self.language_model.set_eagle3_layers_to_capture" in sources["kimi_k25"]


@pytest.mark.parametrize("text", ["sglang", "sglang:0.5", "tgi:1.2.3", "sglang:x.y.z", "sglang:0.5.2 0", ""])
def test_an_engine_without_a_version_is_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="give engine and version"):
        parse_serving(text)


def test_a_draft_config_is_completed_and_not_replaced() -> None:
    base = {"a": 1, "eagle_config": {"x": 2, "eagle_aux_hidden_state_layer_ids": [9]}}
    changes = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]}, "draft_vocab_size": 8}
    assert merged(base, changes) == {
        "a": 1,
        "eagle_config": {"x": 2, "eagle_aux_hidden_state_layer_ids": [1]},
        "draft_vocab_size": 8,
    }


# -- the model's files


def test_the_final_norm_is_found_in_one_file_and_in_shards(tmp_path: Path) -> None:
    weight = norm_model(tmp_path)
    key, found = ModelFiles(str(tmp_path)).final_norm()
    assert key == "model.norm.weight"
    assert torch.equal(found, weight)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00002-of-00002.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors", "x": "gone.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert torch.equal(ModelFiles(str(tmp_path)).final_norm()[1], weight)


@pytest.mark.parametrize(
    ("keys", "wanted"),
    [
        (["model.layers.0.input_layernorm.weight", "model.norm.weight"], "model.norm.weight"),
        (["language_model.model.norm.weight", "vision.norm.weight"], "language_model.model.norm.weight"),
        (["model.language_model.norm.weight", "model.visual.norm.weight"], "model.language_model.norm.weight"),
        (["mtp.model.norm.weight", "model.norm.weight"], "model.norm.weight"),
        (["transformer.ln_f.weight"], None),
        (["xmodel.norm.weight"], None),
    ],
)
def test_which_tensor_is_the_final_norm(keys: list[str], wanted: str | None) -> None:
    assert norm_key(keys) == norm_key(keys[::-1]) == wanted


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def remove_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def other_tensor(folder: Path) -> None:
    save_file({"x": torch.ones(2)}, str(folder / "model.safetensors"))


def cut_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x00" * 5)


def no_eps(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (damage_config, "has a config.json that cannot be read"),
        (remove_weights, "holds no model.safetensors"),
        (other_tensor, "has no tensor model.norm.weight"),
        (cut_weights, "cannot be read"),
        (no_eps, "rms_norm_eps in config.json of the model is needed"),
    ],
)
def test_what_a_model_lacks_is_said_in_a_line(tmp_path: Path, harm: Any, says: str) -> None:
    norm_model(tmp_path)
    harm(tmp_path)
    model = ModelFiles(str(tmp_path))
    with pytest.raises(NoModel, match=says) as caught:
        _ = (model.norm_eps, model.final_norm())
    assert "\n" not in str(caught.value)
    assert "--model PATH" in str(caught.value)
    with pytest.raises(NoModel, match="holds none"):
        _ = ModelFiles(str(tmp_path / "nowhere")).config


def test_the_language_model_inside_a_wrapper_counts(tmp_path: Path) -> None:
    text = {"model_type": "kimi_k2", "vocab_size": 7, "rms_norm_eps": 1e-6}
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
        )
    )
    model = ModelFiles(str(tmp_path))
    assert (model.model_type, model.vocab_size, model.norm_eps) == ("kimi_k2", 7, 1e-6)
    assert model.architecture == "KimiK25ForConditionalGeneration"
