"""What the patched lines call, with stand-ins for SGLang's classes: who builds the model, what starts, what not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from deepseek_skeleton import SKELETON
from hs_server import env
from hs_server.capture import mode as mode_module, source as source_module
from hs_server.capture.errors import CaptureRefused
from hs_server.capture.mode import PLUGIN, SOURCE, Way, claim
from hs_server.capture.ring import HostRing
from hs_server.patch.source import apply_patch


class ModelRunner:
    """Builds a model in `load_model`, some calls down, as SGLang does."""

    def __init__(self, build: Any, *, draft: bool = False, architecture: str = "DeepseekV3ForCausalLM") -> None:
        self.build = build
        self.is_draft_worker = draft
        self.model_config = SimpleNamespace(hf_config=SimpleNamespace(architectures=[architecture]))
        self.model: Any = None

    def load_model(self) -> None:
        def loader() -> Any:
            return self.build("config")

        self.model = loader()


class Session:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.armed = False

    def plan(self, batch: Any) -> None:
        self.armed = True

    def observe(self, last: Any, aux: Any) -> None:
        self.calls.append(f"observe {last} {aux}")

    def finish(self, *, graph_replay: bool = False) -> None:
        self.calls.append("finish")
        self.armed = False

    def abandon(self, error: BaseException) -> None:
        self.armed = False


class Started:
    """In place of `start_capture`: notes how it was called."""

    def __init__(self) -> None:
        self.session = Session()
        self.calls: list[tuple[Any, Any, Way]] = []

    def __call__(self, runner: Any, settings: Any, *, model: Any, way: Way) -> Session:
        model.model.layers_to_capture = [1]
        self.calls.append((runner, model, way))
        return self.session


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Started:
    class TpModelWorker:
        def forward_batch_generation(self, batch: Any, extra: int = 0, *, key: int = 0) -> Any:
            return batch.run(extra, key)

    for name in ("sglang.srt.managers.tp_worker", "sglang.srt.model_executor.model_runner"):
        for end in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:end])
            monkeypatch.setitem(sys.modules, part, ModuleType(part))
    sys.modules["sglang.srt.managers.tp_worker"].TpModelWorker = TpModelWorker  # type: ignore[attr-defined]
    sys.modules["sglang.srt.model_executor.model_runner"].ModelRunner = ModelRunner  # type: ignore[attr-defined]
    monkeypatch.setenv(env.DUMP_DIR, str(tmp_path / "scratch"))
    monkeypatch.delenv(env.MODE, raising=False)
    monkeypatch.setattr(mode_module, "_claimed", [])
    made = Started()
    monkeypatch.setattr(source_module, "start_capture", made)
    return made


def patched_module(folder: Path, text: str = SKELETON) -> Any:
    file = folder / "deepseek_v2.py"
    file.write_text(apply_patch(text))
    spec = importlib.util.spec_from_file_location("patched_deepseek", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_model_that_is_loaded_is_captured(started: Started, tmp_path: Path) -> None:
    module = patched_module(tmp_path)
    runner = ModelRunner(module.DeepseekV3ForCausalLM)
    runner.load_model()
    model = runner.model
    assert model.capture_aux_hidden_states is True
    ((called_runner, called_model, way),) = started.calls
    assert (called_runner, called_model) == (runner, model)
    assert (way.mode, way.source_file) == (SOURCE, module.__file__)
    assert len(way.source_sha256) == 64

    # A batch: planned and finished around the worker's method, observed where the model hands over its states.
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(name="EXTEND"), run=lambda extra, key: (model.forward(1, 2, 3), extra, key)
    )
    worker = sys.modules["sglang.srt.managers.tp_worker"].TpModelWorker()
    assert worker.forward_batch_generation(batch, 4, key=5) == (([1.0, 2.0], ["aux"]), 4, 5)
    assert started.session.calls == ["observe [1.0, 2.0] ['aux']", "finish"]
    # Nothing is kept of a forward pass that has no rows of ours.
    model.forward(1, 2, 3)
    assert started.session.calls == ["observe [1.0, 2.0] ['aux']", "finish"]


def test_draft_models_and_second_models_are_left_alone(started: Started, tmp_path: Path) -> None:
    module = patched_module(tmp_path)
    draft = ModelRunner(module.DeepseekV3ForCausalLM, draft=True)
    draft.load_model()
    assert draft.model.capture_aux_hidden_states is False
    assert started.calls == []
    for _ in range(2):
        ModelRunner(module.DeepseekV3ForCausalLM).load_model()
    assert len(started.calls) == 1


def test_a_model_that_nobody_loads_is_refused(started: Started, tmp_path: Path) -> None:
    module = patched_module(tmp_path)
    with pytest.raises(CaptureRefused, match="finds no ModelRunner"):
        module.DeepseekV3ForCausalLM("config")


def test_a_wrapper_that_is_not_known_is_refused(started: Started, tmp_path: Path) -> None:
    module = patched_module(tmp_path)
    runner = ModelRunner(module.DeepseekV3ForCausalLM, architecture="DotsVLMForCausalLM")
    with pytest.raises(CaptureRefused, match="DotsVLMForCausalLM uses the patched file in a way that is not known"):
        runner.load_model()
    known = ModelRunner(module.DeepseekV3ForCausalLM, architecture="KimiK25ForConditionalGeneration")
    known.load_model()
    assert known.model.capture_aux_hidden_states is True


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        (SKELETON, "was not made from"),
        (apply_patch(SKELETON + "# other\n"), "was not made from"),
        (apply_patch(SKELETON).replace("self.layers = []", "self.layers = [1]"), "edited by hand"),
    ],
)
def test_a_file_that_is_not_what_runs_is_refused(started: Started, tmp_path: Path, later: str, reason: str) -> None:
    """The module was compiled from one file; by the time the model is built another one lies there."""
    module = patched_module(tmp_path)
    Path(module.__file__).write_text(later)
    with pytest.raises(CaptureRefused, match=reason):
        ModelRunner(module.DeepseekV3ForCausalLM).load_model()
    assert started.calls == []


def test_an_error_while_starting_ends_the_process_by_name(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = patched_module(tmp_path)
    monkeypatch.setattr(source_module, "start_capture", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(CaptureRefused, match="start-up failed: ZeroDivisionError"):
        ModelRunner(module.DeepseekV3ForCausalLM).load_model()


@pytest.mark.parametrize(
    ("variable", "first", "plugin", "source"),
    [
        (None, PLUGIN, True, False),
        (None, SOURCE, False, True),
        ("plugin", SOURCE, True, False),
        ("source", PLUGIN, False, True),
    ],
)
def test_one_way_in_a_process(
    started: Started, monkeypatch: pytest.MonkeyPatch, variable: str | None, first: str, plugin: bool, source: bool
) -> None:
    if variable:
        monkeypatch.setenv(env.MODE, variable)
    order = [first, SOURCE if first == PLUGIN else PLUGIN, first]
    won = {name: claim(name) for name in order}
    assert won == {PLUGIN: plugin, SOURCE: source}


def test_a_mode_that_does_not_exist_is_refused(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.MODE, "sauce")
    with pytest.raises(CaptureRefused, match=r"SGLANG_HS_MODE='sauce' is not one of plugin, source"):
        claim(PLUGIN)


def test_where_the_plugin_captures_the_patch_is_dormant(started: Started, tmp_path: Path) -> None:
    assert claim(PLUGIN)
    module = patched_module(tmp_path)
    assert module._hs_capture is None
    runner = ModelRunner(module.DeepseekV3ForCausalLM)
    runner.load_model()
    assert runner.model.capture_aux_hidden_states is False


def test_the_ring_is_host_memory_while_a_model_is_built_on_a_gpu() -> None:
    """SGLang builds models with the GPU as default device and the model's dtype as default."""
    with torch.device("meta"):
        ring = HostRing(4, (2, 3, 8), torch.bfloat16, pinned=False)
    slot = ring.take(timeout_s=1)
    assert slot is not None
    assert (slot.rows.device.type, slot.rows.dtype) == ("cpu", torch.bfloat16)
    assert len(slot.view(0, 2)) == 2 * 3 * 8 * 2
