"""How model families are flagged: on stubs, and the table against the sources of the SGLang that is installed."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

from hs_server.capture.errors import CaptureRefused
from hs_server.capture.families import (
    FAMILIES,
    MODELS_PACKAGE,
    WRAPPERS,
    Family,
    arm_model,
    check_reduction,
    family_of,
)
from hs_server.cpu_profile.model_files import find_models_folder

CLASSES = [(family, name) for family in FAMILIES for name in family.classes]
FUSED = {"flashinfer_allreduce_fusion_backend": "auto"}


def stub(name: str, *, package: str = MODELS_PACKAGE, **attributes: Any) -> Any:
    """An object whose class is called `name`, ``file.Class``."""
    module, class_name = name.rsplit(".", 1)
    model = type(class_name, (), {"__module__": f"{package}.{module}"})()
    for key, value in attributes.items():
        setattr(model, key, value)
    return model


class Inner:
    """A text model with marks on its layers, where the family has them."""

    def __init__(self, family: Family) -> None:
        self.layers_to_capture: list[int] = []
        self.marked: list[int] = []
        if family.flag == "setter":
            self.set_eagle3_layers_to_capture = self._set

    def _set(self, layers: list[int]) -> None:
        self.layers_to_capture = self.marked = layers


@pytest.mark.parametrize(("family", "name"), CLASSES, ids=[name for _, name in CLASSES])
def test_every_class_of_the_table_is_flagged_with_the_boundaries_as_they_are(family: Family, name: str) -> None:
    inner = Inner(family)
    model = stub(name, model=inner, capture_aux_hidden_states=False)
    arm_model(model, (1, 4, 7))
    assert inner.layers_to_capture == [1, 4, 7]
    assert inner.marked == ([1, 4, 7] if family.flag == "setter" else [])
    assert model.capture_aux_hidden_states is True
    assert family_of(model) is family


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_is_flagged_on_its_language_model(wrapper: str) -> None:
    inner = Inner(FAMILIES[0])
    text = stub(FAMILIES[0].classes[0], model=inner, capture_aux_hidden_states=False)
    # As Kimi-K2.5 does: `model` is the language model again.
    model = stub(wrapper, language_model=text, model=text)
    arm_model(model, (3, 31, 59))
    assert inner.layers_to_capture == [3, 31, 59]
    assert text.capture_aux_hidden_states is True
    assert not hasattr(model, "capture_aux_hidden_states")


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(stub("gemma3_causal.Gemma3ForCausalLM"), id="other family"),
        pytest.param(stub("llama4.Llama4ForCausalLM"), id="subclass with another model inside"),
        pytest.param(stub("llama.LlamaForCausalLM", package="somebody.models"), id="same name elsewhere"),
        pytest.param(stub("mllama4.Llama4ForConditionalGeneration", language_model=object()), id="other wrapper"),
        pytest.param(
            stub("kimi_k25.KimiK25ForConditionalGeneration", language_model=None), id="wrapper without its inside"
        ),
    ],
)
def test_other_classes_are_refused_although_they_have_the_attributes(model: Any) -> None:
    model.model = SimpleNamespace(layers_to_capture=[])
    model.capture_aux_hidden_states = False
    with pytest.raises(CaptureRefused) as refused:
        arm_model(model, (1, 4))
    assert type(model).__name__ in str(refused.value)
    for known in ("DeepSeek-V2/V3", "Kimi-K2.5", "Qwen3-MoE", "gpt-oss", "GLM-4-MoE", "--no-capture"):
        assert known in str(refused.value)
    assert model.model.layers_to_capture == []
    assert model.capture_aux_hidden_states is False


def test_a_version_that_flags_a_family_otherwise_is_refused() -> None:
    by_list, by_setter = FAMILIES[0], next(family for family in FAMILIES if family.flag == "setter")
    for family, inner in (
        (by_list, Inner(by_setter)),
        (by_setter, Inner(by_list)),
        (by_list, SimpleNamespace()),
    ):
        model = stub(family.classes[0], model=inner, capture_aux_hidden_states=False)
        with pytest.raises(CaptureRefused, match=r"of this SGLang version is not told"):
            arm_model(model, (1,))
    with pytest.raises(CaptureRefused, match=r"of this SGLang version is not told"):
        arm_model(stub(by_list.classes[0], model=Inner(by_list)), (1,))


@pytest.mark.parametrize(
    ("name", "arguments", "tp_size", "version", "refused"),
    [
        ("gpt_oss.GptOssForCausalLM", FUSED, 2, "0.5.20", True),
        ("gpt_oss.GptOssForCausalLM", FUSED, 1, "0.5.20", False),
        ("gpt_oss.GptOssForCausalLM", FUSED, 2, "0.5.23", False),
        ("gpt_oss.GptOssForCausalLM", {"flashinfer_allreduce_fusion_backend": None}, 2, "0.5.20", False),
        ("glm4_moe.Glm4MoeForCausalLM", {"enable_aiter_allreduce_fusion": True}, 8, "0.5.22.post1", True),
        ("glm4_moe.Glm4MoeForCausalLM", FUSED, 8, "0.6.0rc1", False),
        ("deepseek_v2.DeepseekV3ForCausalLM", {"enable_flashinfer_allreduce_fusion": True}, 8, "0.5.13", True),
        ("deepseek_v2.DeepseekV3ForCausalLM", FUSED, 8, "0.5.14", False),
        ("deepseek_v2.DeepseekV3ForCausalLM", FUSED, 8, "unknown", True),
        ("qwen3_moe.Qwen3MoeForCausalLM", FUSED, 8, "0.5.11", False),
        ("llama.LlamaForCausalLM", {}, 8, "0.5.11", False),
    ],
)
def test_partial_sums_of_fused_all_reduces_are_refused(
    name: str, arguments: dict[str, Any], tp_size: int, version: str, refused: bool
) -> None:
    def check() -> None:
        check_reduction(stub(name), SimpleNamespace(**arguments), tp_size=tp_size, sglang_version=version)

    if refused:
        with pytest.raises(CaptureRefused, match="--enforce-disable-flashinfer-allreduce-fusion"):
            check()
    else:
        check()


def test_a_version_without_the_flag_has_another_remedy() -> None:
    for version, remedy in (("0.5.9", "use SGLang 0.5.10 or newer"), ("0.5.10.post1", "launch with --enforce-disable")):
        with pytest.raises(CaptureRefused, match=remedy):
            check_reduction(
                stub("deepseek_v2.DeepseekV3ForCausalLM"), SimpleNamespace(**FUSED), tp_size=2, sglang_version=version
            )


# The table against the sources of 0.5.20 that this environment has: read, not imported.


@cache
def source(file: str) -> ast.Module:
    folder = find_models_folder()
    assert folder is not None
    return ast.parse((folder / f"{file}.py").read_text())


def class_of(file: str, name: str) -> tuple[str, ast.ClassDef]:
    """The class `name` of `file`, followed through imports; with the file that has it."""
    for node in ast.walk(source(file)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return file, node
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(MODELS_PACKAGE + "."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return class_of(node.module.removeprefix(MODELS_PACKAGE + "."), alias.name)
    raise AssertionError(f"{file}.py has no class {name}")


def lineage(file: str, name: str) -> list[tuple[str, ast.ClassDef]]:
    """The class and its bases among SGLang's models."""
    file, node = class_of(file, name)
    found = [(file, node)]
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id not in {"PreTrainedModel", "DeepseekV2WeightLoaderMixin"}:
            found += lineage(file, base.id)
    return found


def methods(node: ast.ClassDef) -> dict[str, str]:
    return {item.name: ast.unparse(item) for item in node.body if isinstance(item, ast.FunctionDef)}


def method(file: str, name: str, wanted: str) -> str:
    """Source of a method, the class's own or inherited, without comments."""
    for _, node in lineage(file, name):
        if wanted in methods(node):
            return methods(node)[wanted]
    raise AssertionError(f"{file}.{name} has no {wanted}")


needs_sources = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="SGLang is not installed: its sources cannot be looked at"
)


@needs_sources
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_the_first_class_of_a_family_is_flagged_as_the_table_says(family: Family) -> None:
    file, name = family.classes[0].split(".")
    made, ran = method(file, name, "__init__"), method(file, name, "forward")
    assert "self.capture_aux_hidden_states = False" in made
    assert "if self.capture_aux_hidden_states:" in ran
    assert "self.logits_processor(" in ran
    makers = made + (method(file, name, "_init_model") if "_init_model" in made else "")
    assert family.inner + "(" in makers

    assert "self.layers_to_capture = []" in "".join(
        methods(node).get("__init__", "") for _, node in lineage(file, family.inner)
    )
    own = {key for _, node in lineage(file, family.inner) for key in methods(node)}
    assert ("set_eagle3_layers_to_capture" in own) == (family.flag == "setter")


ENTERING = {
    # Before layer i is called, whose input is the sum that is kept.
    "if i in self.layers_to_capture:\naux_hidden_states.append(hidden_states + residual": (
        {"Llama", "Qwen2", "Qwen3", "GLM-4-MoE"}
    ),
    # Layer i keeps what its input norm makes of its input and the residual: their sum.
    "captured_last_layer_outputs=aux_hidden_states if i in self.layers_to_capture else None": {"DeepSeek-V2/V3"},
    "captured_last_layer_outputs=aux_hidden_states if getattr(layer, '_is_layer_to_capture', False) else None": (
        {"Qwen2-MoE", "Qwen3-MoE"}
    ),
    # Behind layer i, for i + 1.
    "if i + 1 in self.layers_to_capture:\naux_hidden_states.append(hidden_states + residual": {"gpt-oss"},
}


@needs_sources
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_entry_b_means_the_stream_that_enters_layer_b(family: Family) -> None:
    file, _ = family.classes[0].split(".")
    body = "\n".join(line.strip() for line in method(file, family.inner, "forward").splitlines())
    fits = [text for text, names in ENTERING.items() if family.name in names]
    assert len(fits) == 1
    assert [text for text in ENTERING if text in body] == fits
    loop = body.index("for i in range(")
    call = body.index("= layer(", loop)
    kept = body.index("self.layers_to_capture:" if "+ residual" in fits[0] else "captured_last_layer_outputs", loop)
    assert (kept > call) == (family.name == "gpt-oss" or "captured" in fits[0])
    if family.flag == "setter":
        setter = method(file, family.inner, "set_eagle3_layers_to_capture")
        assert "self.layers_to_capture = layers_to_capture" in setter
        assert "setattr(self.layers[layer_id], '_is_layer_to_capture', True)" in setter
        assert "+ 1" not in setter


@needs_sources
def test_the_layers_that_keep_their_input_keep_the_sum() -> None:
    folder = find_models_folder()
    assert folder is not None
    text = (folder.parent / "layers" / "communicator.py").read_text()
    start = text.index("def prepare_attn_and_capture_last_layer_outputs")
    body = text[start : text.index("\n    def ", start + 1)]
    assert body.index("self.prepare_attn(") < body.index("hidden_states=residual")
    assert "captured_last_layer_outputs.append(gathered_last_layer_output)" in body


@needs_sources
@pytest.mark.parametrize("family", FAMILIES, ids=[family.name for family in FAMILIES])
def test_the_other_classes_of_a_family_change_nothing_of_the_first(family: Family) -> None:
    first_file, first_name = family.classes[0].split(".")
    _, first = class_of(first_file, first_name)
    for name in family.classes[1:]:
        file, class_name = name.split(".")
        chain = [node for _, node in lineage(file, class_name)]
        assert first in chain
        for node in chain[: chain.index(first)]:
            assert not methods(node), f"{node.name} has methods of its own"


@needs_sources
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_call_a_known_causal_lm_whole(wrapper: str) -> None:
    file, name = wrapper.split(".")
    ran = method(file, name, "forward")
    assert "general_mm_embed_routine(" in ran
    assert "language_model=self.language_model" in ran
    made = method(file, name, "__init__")
    assert any(f"self.language_model = {known.split('.')[1]}(" in made for known in FAMILIES[0].classes)


@needs_sources
def test_every_class_is_one_that_sglang_exports() -> None:
    for name in [*(name for _, name in CLASSES), *WRAPPERS]:
        file, class_name = name.split(".")
        exported = next(
            node.value
            for node in source(file).body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass"
        )
        assert class_name in {item.id for item in ast.walk(exported) if isinstance(item, ast.Name)}, name
