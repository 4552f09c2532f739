"""A SGLang plugin for tests: breaks the capture in one of the ways that `hs-server doctor` must find.

Put this folder on the PYTHONPATH of a server and name a file in ``HS_TEST_FAULT``; whatever fault that file holds is in
force, so that one server serves all of them. ``radix cache`` and ``unchecked settings`` count at start only.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

_models: list[Any] = []


def install() -> None:
    """Entry point; inert without the variable."""
    if not os.environ.get("HS_TEST_FAULT"):
        return
    if _fault() == "radix cache":
        _allow_radix_cache()
    start: Any = importlib.import_module("hs_server.capture.start")
    if _fault() in ("radix cache", "unchecked settings"):
        start.check_settings = lambda server_args, *, mode: None
    session: Any = importlib.import_module("hs_server.capture.session").CaptureSession
    arm_model = start.arm_model

    def remember(model: Any, boundaries: tuple[int, ...]) -> None:
        _models.append(model)
        arm_model(model, boundaries)

    start.arm_model = remember
    session.plan = _plan(session.plan)
    session.observe = _observe(session.observe)


def _fault() -> str:
    return Path(os.environ["HS_TEST_FAULT"]).read_text().strip()


def _allow_radix_cache() -> None:
    """SGLang loads plugins before it reads its command line."""
    if "--disable-radix-cache" in sys.argv:
        sys.argv.remove("--disable-radix-cache")


def _plan(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def plan(session: Any, batch: Any) -> None:
        fault, rank = _fault(), session._template.tp_rank
        boundaries = list(session._template.boundaries)
        _models[0].model.layers_to_capture = {
            "next layer": [boundary + 1 for boundary in boundaries],
            "missing boundary": boundaries[:-1],
        }.get(fault, boundaries)
        original(session, batch)
        rows = sum(getattr(batch, "extend_lens", None) or batch.extend_seq_lens)
        if (
            fault == "silent"
            or (fault == "silent rank" and rank == 1)
            or (fault == "silent for small batches" and rows < 10)
        ):
            session.disarm()
        elif fault == "cut rows":
            session._planned = [_cut(item) for item in session._planned if item.meta.stop - item.meta.start > 1]
        elif fault == "other ids":
            session._planned = [replace(item, input_ids=item.input_ids[::-1]) for item in session._planned]
        elif fault == "other nonce":
            session._planned = [replace(item, meta=replace(item.meta, nonce="f" * 16)) for item in session._planned]

    return plan


def _cut(item: Any) -> Any:
    meta = replace(item.meta, stop=item.meta.stop - 1)
    return replace(item, meta=meta, rows=replace(item.rows, stop=item.rows.stop - 1), input_ids=item.input_ids[:-8])


def _observe(original: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    first: dict[int, Any] = {}

    def observe(session: Any, last: Any, aux: Any) -> None:
        fault, rank = _fault(), session._template.tp_rank
        hidden = last.shape[1]
        if fault == "other values on a rank" and rank == 1:
            last = last * 1.001
        elif fault == "equal slots":
            last = aux[:, -hidden:] if not isinstance(aux, list | tuple) else aux[-1]
        elif fault == "constant slot":
            last = last.new_ones(last.shape)
        elif fault == "not finite":
            last = last.clone()
            last[-1, 3] = float("nan")
        elif fault == "stale buffer":
            last = first.setdefault(last.shape[0], last.clone())
        elif fault == "shifted rows":
            last = last.roll(1, 0)
        elif fault == "passes differ" and len(session._planned) > 1:
            last = last.flip(0)
        original(session, last, aux)

    return observe
