"""The hooks on SGLang's real registry, the guards, and the dormant plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hs_server import env
from hs_server.capture.errors import CaptureRefused
from hs_server.capture.guards import GUARDS, check_settings, prefill_graphs, unsafe_settings
from hs_server.capture.hooks import Hooks
from hs_server.capture.mode import PLUGIN, SOURCE
from hs_server.capture.settings import CaptureSettings

# What makes each guard refuse.
UNSAFE: dict[str, Any] = {
    "disable_radix_cache": False,
    "pp_size": 2,
    "enable_two_batch_overlap": True,
    "speculative_algorithm": "EAGLE3",
    "enable_mixed_chunk": True,
    "enable_attn_tp_input_scattered": True,
    "enable_layernorm_sp": True,
    "enable_dp_attention": True,
    "attn_dp_size": 2,
    "attn_cp_size": 2,
    "enable_prefill_cp": True,
    "dcp_size": 2,
    "allow_auto_truncate": True,
    "preferred_sampling_params": {"n": 2, "temperature": 0.5},
    "disaggregation_mode": "prefill",
    "enable_pdmux": True,
    "dllm_algorithm": "LowConfidence",
    "enable_return_aux_hidden_states": True,
    "dp_size": 2,
}
# SGLang's own defaults, and what is as harmless.
SAFE: dict[str, Any] = {
    **dict.fromkeys(UNSAFE),
    "disable_radix_cache": True,
    "pp_size": 1,
    "enable_mixed_chunk": False,
    "preferred_sampling_params": {"n": 1, "temperature": 0.5},
    "disaggregation_mode": "null",
    "dp_size": 1,
}


class Session:
    """Notes what the hooks call."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.armed = False

    def plan(self, batch: Any) -> None:
        self.calls.append("plan")
        self.armed = batch.ours

    def observe(self, last: Any, aux: Any) -> None:
        self.calls.append(f"observe {last} {aux}")

    def finish(self, *, graph_replay: bool = False) -> None:
        self.calls.append("finish")
        self.armed = False

    def abandon(self, error: BaseException) -> None:
        self.calls.append(f"abandon {error}")
        self.armed = False

    def disarm(self) -> None:
        self.armed = False


@pytest.fixture
def hooks(tmp_path: Any) -> tuple[Hooks, Session]:
    made = Hooks(CaptureSettings.from_environment({env.DUMP_DIR: str(tmp_path)}))
    session = Session()
    made._session = session  # type: ignore[assignment]
    return made, session


def batch(mode: str = "EXTEND", *, ours: bool = True) -> Any:
    return SimpleNamespace(forward_mode=SimpleNamespace(name=mode), ours=ours)


def run(hooks: Hooks, item: Any) -> Any:
    def logits(processor: Any, *args: Any, **kwargs: Any) -> Any:
        return "logits", args, kwargs

    def forward(worker: Any, got: Any, *args: Any, **kwargs: Any) -> Any:
        return hooks.around_logits(logits, "p", "ids", "last", "head", "meta", aux_hidden_states="aux", extra=1)

    return hooks.around_forward_batch(forward, "worker", item, 1, key=2)


def test_an_armed_prefill_is_observed_and_finished_and_the_call_passes_through(hooks: tuple[Hooks, Session]) -> None:
    made, session = hooks
    assert run(made, batch()) == ("logits", ("ids", "last", "head", "meta", "aux"), {"extra": 1})
    assert session.calls == ["plan", "observe last aux", "finish"]


@pytest.mark.parametrize("mode", ["DECODE", "IDLE", "TARGET_VERIFY", "MIXED", "SPLIT_PREFILL"])
def test_other_modes_are_not_looked_at(hooks: tuple[Hooks, Session], mode: str) -> None:
    made, session = hooks
    run(made, batch(mode))
    assert session.calls == []


def test_a_prefill_without_rows_of_ours_costs_a_plan_only(hooks: tuple[Hooks, Session]) -> None:
    made, session = hooks
    run(made, batch(ours=False))
    assert session.calls == ["plan"]


def test_an_error_of_the_forward_pass_reaches_the_scheduler(hooks: tuple[Hooks, Session]) -> None:
    made, session = hooks

    def broken(worker: Any, got: Any) -> None:
        raise RuntimeError("CUDA error")

    with pytest.raises(RuntimeError, match="CUDA error"):
        made.around_forward_batch(broken, "worker", batch())
    assert session.calls == ["plan", "abandon CUDA error"]
    assert not session.armed


def test_an_error_of_ours_does_not_reach_the_scheduler(hooks: tuple[Hooks, Session]) -> None:
    made, session = hooks
    session.plan = lambda batch: 1 / 0  # type: ignore[method-assign,assignment]
    assert run(made, batch())[0] == "logits"


def test_no_batch_and_no_session_pass_through(tmp_path: Any) -> None:
    made = Hooks(CaptureSettings.from_environment({env.DUMP_DIR: str(tmp_path)}))
    assert run(made, None)[0] == "logits"
    assert run(made, batch())[0] == "logits"


def test_safe_settings_pass_and_unknown_arguments_are_not_missed() -> None:
    check_settings(SimpleNamespace(**SAFE), mode=PLUGIN)
    check_settings(SimpleNamespace(disable_radix_cache=True), mode=SOURCE)


def test_every_guard_is_in_the_table() -> None:
    assert [guard.argument for guard in GUARDS] == list(UNSAFE)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.argument)
def test_each_guard_refuses_with_reason_and_remedy(guard: Any) -> None:
    bad = UNSAFE[guard.argument]
    with pytest.raises(CaptureRefused) as refused:
        check_settings(SimpleNamespace(**{**SAFE, guard.argument: bad}), mode=PLUGIN)
    assert str(refused.value).endswith(f"{guard.argument}={bad}: {guard.reason}; {guard.remedy}")
    # The same table for a running server, as its /server_info tells.
    info = json.loads(json.dumps({**SAFE, guard.argument: bad, "version": "0.5.20"}))
    (unsafe,) = unsafe_settings(info, mode=PLUGIN)
    assert (unsafe.argument, unsafe.value, unsafe.reason, unsafe.remedy) == (
        guard.argument,
        bad,
        guard.reason,
        guard.remedy,
    )


def test_all_unsafe_settings_of_a_running_server_are_named_at_once() -> None:
    assert [unsafe.argument for unsafe in unsafe_settings(UNSAFE, mode=PLUGIN)] == list(UNSAFE)
    assert unsafe_settings({"preferred_sampling_params": '{"n": 4}'}, mode=PLUGIN)
    assert not unsafe_settings({"preferred_sampling_params": "{"}, mode=PLUGIN)


def graphs(backend: str | None) -> dict[str, Any]:
    return {"cuda_graph_config": {"decode": {"backend": "full"}, "prefill": {"backend": backend}}}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (graphs("tc_piecewise"), ("cuda_graph_config.prefill.backend", "tc_piecewise")),
        (graphs("breakable"), ("cuda_graph_config.prefill.backend", "breakable")),
        (graphs(None), ("cuda_graph_config.prefill.backend", "the default")),
        # 0.5.14 keeps the older argument beside the newer one, which decides.
        (graphs("full") | {"disable_piecewise_cuda_graph": True}, ("cuda_graph_config.prefill.backend", "full")),
        (graphs("disabled") | {"disable_piecewise_cuda_graph": False}, None),
        (graphs("tc_piecewise") | {"device": "cpu"}, None),
        ({"disable_piecewise_cuda_graph": False}, ("disable_piecewise_cuda_graph", False)),
        ({"disable_piecewise_cuda_graph": True}, None),
        ({"enable_piecewise_cuda_graph": True}, ("enable_piecewise_cuda_graph", True)),
        ({"enable_piecewise_cuda_graph": False, "disable_cuda_graph": True}, None),
        ({}, None),
    ],
)
def test_prefill_graphs_are_refused_in_source_mode_alone(
    settings: dict[str, Any], found: tuple[str, Any] | None
) -> None:
    assert prefill_graphs(settings) == found
    assert not unsafe_settings(settings, mode=PLUGIN)
    assert [(unsafe.argument, unsafe.value) for unsafe in unsafe_settings(settings, mode=SOURCE)] == [found] * bool(
        found
    )
    own = {name: SimpleNamespace(prefill=SimpleNamespace(**value["prefill"])) if isinstance(value, dict) else value
           for name, value in settings.items()}  # fmt: skip
    check_settings(SimpleNamespace(**own), mode=PLUGIN)
    if found is None:
        check_settings(SimpleNamespace(**own), mode=SOURCE)
        return
    with pytest.raises(CaptureRefused, match="source mode was proved right with every prefill graph off") as refused:
        check_settings(SimpleNamespace(**own), mode=SOURCE)
    assert "--disable-prefill-cuda-graph" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (env.DUMP_DIR, "relative/folder"),
        (env.BOUNDARIES, "1,two"),
        (env.WRITERS, "second"),
        (env.NONCE, "xyz"),
        (env.RING_BYTES, "-5"),
        (env.RING_BYTES, "1e9"),
        (env.STAGING_BYTES, "0"),
    ],
)
def test_settings_name_the_variable_they_refuse(name: str, value: str) -> None:
    with pytest.raises(CaptureRefused, match=name):
        CaptureSettings.from_environment({env.DUMP_DIR: "/dev/shm/x", name: value})


def test_the_dormant_plugin_imports_nothing() -> None:
    code = """
import os, sys
os.environ.pop("SGLANG_HS_DUMP_DIR", None)
from hs_server.plugin import install
install()
heavy = [name for name in sys.modules if name.split(".")[0] in {"torch", "sglang", "numpy", "hs_formats"}]
heavy += [name for name in sys.modules if name.startswith("hs_server.capture")]
print(heavy)
"""
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"


def test_the_capture_imports_only_the_standard_library_and_torch() -> None:
    code = """
import sys
import torch
before = set(sys.modules)
import hs_server.capture.hooks
ours = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(ours - set(sys.stdlib_module_names) - {"hs_formats", "hs_server", "torch"}))
"""
    out = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True
    ).stdout
    assert out.strip() == "[]"
