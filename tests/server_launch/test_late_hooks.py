"""Hooks without SGLang's registry: on modules imported later, and in processes that multiprocessing spawns."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hs_server.capture.late_hooks import LateHooks

TARGET = "late_hooks_target.Thing.method"
FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/model_executor/__init__.py": "",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/layers/__init__.py": "",
    "sglang/srt/model_executor/model_runner.py": "class ModelRunner:\n    def load_model(self): pass\n",
    "sglang/srt/managers/tp_worker.py": "class TpModelWorker:\n    def forward_batch_generation(self, batch): pass\n",
    "sglang/srt/layers/logits_processor.py": "class LogitsProcessor:\n    def forward(self, ids): pass\n",
    "sglang/srt/managers/scheduler.py": """\
def scheduler(queue):
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.model_executor.model_runner import ModelRunner
    wrapped = [hasattr(method, "__wrapped__") for method in
               (LogitsProcessor.forward, TpModelWorker.forward_batch_generation, ModelRunner.load_model)]
    try:
        ModelRunner().load_model()
        said = "loaded"
    except RuntimeError as error:
        said = str(error)
    queue.put((wrapped, said))
""",
    "sglang/launch_server.py": """\
import multiprocessing

from sglang.srt.managers.scheduler import scheduler

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=scheduler, args=(queue,))
    process.start()
    print(*queue.get(timeout=60))
    process.join()
""",
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "late_hooks_target.py"
    file.write_text("class Thing:\n    def method(self, x, *, y=0):\n        return x + y\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "late_hooks_target", raising=False)
    return file


def test_methods_are_wrapped_when_their_module_is_imported(module: Path) -> None:
    calls: list[Any] = []

    def around(original: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(("around", args[1:], kwargs))
        return original(*args, **kwargs) * 10

    def after(result: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(("after", result))
        return result + 1

    hooks = LateHooks()
    hooks.around(TARGET, around)
    hooks.after(TARGET, after)
    hooks.around("late_hooks_target.Thing.gone", around)
    hooks.install()
    assert hooks.applied == set()
    late_hooks_target = importlib.import_module("late_hooks_target")
    assert hooks.applied == {TARGET}
    assert late_hooks_target.Thing().method(1, y=2) == 31
    assert calls == [("around", (1,), {"y": 2}), ("after", 30)]
    assert late_hooks_target.__file__ == str(module)


def test_a_module_that_is_there_already_is_too_late(module: Path) -> None:
    late_hooks_target = importlib.import_module("late_hooks_target")
    hooks = LateHooks()
    hooks.after(TARGET, lambda result, *args: result)
    with pytest.raises(RuntimeError, match="was imported before"):
        hooks.install()
    assert not hasattr(late_hooks_target.Thing.method, "__wrapped__")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SGLANG_HS_MODE": "plugin"}, "[False, False, False] loaded"),
        ({"SGLANG_HS_DUMP_DIR": "/nowhere"}, "[True, True, True] hs-extract refuses to capture: start-up failed"),
    ],
)
def test_the_main_module_hooks_spawned_processes(tmp_path: Path, variables: dict[str, str], expected: str) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_")}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "hs_server.sglang_main", "--port", "1"],
        env={**kept, "PYTHONPATH": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(expected), done.stdout
