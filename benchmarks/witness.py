"""A plugin for SGLang that says, from inside a server's processes, which functions the capture replaced.

"A dormant capture costs nothing" is measured in tokens per second; that nothing is there at all is shown by this: the
hooks in SGLang's registry, the code behind each function that the capture would wrap, and the capture's own modules.

Inert unless ``HS_BENCH_WITNESS`` names a folder. Then a thread waits there for a file called ``ask`` and answers it in
``<pid>.json``; it imports nothing, so a process that never loaded a function does not list it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "ask", "install", "testimony"]

VARIABLE = "HS_BENCH_WITNESS"

_TARGETS = (
    ("sglang.srt.model_executor.model_runner", "ModelRunner", "load_model"),
    ("sglang.srt.managers.tp_worker", "TpModelWorker", "forward_batch_generation"),
    ("sglang.srt.layers.logits_processor", "LogitsProcessor", "forward"),
)
_REGISTRY = "sglang.srt.plugins.hook_registry"
_CAPTURE = "hs_server.capture"
_POLL_S = 0.5


def install() -> None:
    """Entry point of the plugin."""
    folder = os.environ.get(VARIABLE)
    if folder:
        threading.Thread(target=_answer, args=(Path(folder),), name="hs-bench-witness", daemon=True).start()


def ask(folder: Path, *, processes: int, timeout_s: float = 10.0) -> list[dict[str, Any]]:
    """What the processes that run the model say, `processes` of them at the least if they answer in time."""
    (folder / "ask").touch()
    deadline = time.monotonic() + timeout_s
    while True:
        said = [json.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))]
        ran = [item for item in said if len(item["functions"]) == len(_TARGETS) and item["name"] != "MainProcess"]
        if len(ran) >= processes or time.monotonic() > deadline:
            return ran
        time.sleep(_POLL_S / 5)


def testimony() -> dict[str, Any]:
    """Of this process: registered hooks, the file that holds the code of each function, loaded capture modules."""
    registry = getattr(sys.modules.get(_REGISTRY), "HookRegistry", None)
    functions: dict[str, dict[str, Any]] = {}
    for module, owner, name in _TARGETS:
        found = getattr(getattr(sys.modules.get(module), owner, None), name, None)
        if found is not None:
            # functools.wraps copies names, never code: the file of the code tells a wrapper from the original.
            code = Path(found.__code__.co_filename).name
            functions[f"{owner}.{name}"] = {"code_in": code, "hooked": code == "hook_registry.py"}
    return {
        "name": multiprocessing.current_process().name,
        "hooks": sorted(target for target, hooks in getattr(registry, "_hooks", {}).items() if hooks),
        "functions": functions,
        "capture_modules": sorted(name for name in sys.modules if name.startswith(_CAPTURE)),
    }


def _answer(folder: Path) -> None:
    while not (folder / "ask").exists():
        time.sleep(_POLL_S)
    temporary = folder / f".{os.getpid()}.tmp"
    temporary.write_text(json.dumps(testimony()), encoding="utf-8")
    temporary.replace(folder / f"{os.getpid()}.json")
