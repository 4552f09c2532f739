from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_formats.errors import UsageError
from hs_server.arguments import Topology, flag_value, merge_arguments, without_secrets
from hs_server.dry_run import dry_run_lines
from hs_server.plan import CaptureRequest, LaunchPlan, LaunchRequest, make_plan
from hs_server.profiles import PROFILES

CAPTURE = CaptureRequest(dump_dir=Path("/scratch"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "model", {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 61})


def write_model(folder: Path, config: dict[str, object]) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 16} | config))
    return str(folder)


def plan_of(
    model: str,
    *,
    profile: str = "default",
    capture: CaptureRequest | None = CAPTURE,
    pass_through: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> LaunchPlan:
    request = LaunchRequest(model_path=model, capture=capture, profile=profile, port=21999, pass_through=pass_through)
    return make_plan(request, environment or {})


def test_default_profile_arguments(model: str) -> None:
    assert plan_of(model).argv == (
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", model),
        *("--host", "127.0.0.1", "--port", "21999"),
        *("--disable-radix-cache", "--disable-custom-all-reduce"),
    )


def test_cpu_profile_arguments(model: str) -> None:
    argv = plan_of(model, profile="cpu").argv
    assert argv[argv.index("--port") + 2 :] == (
        *("--disable-radix-cache", "--device", "cpu", "--attention-backend", "torch_native"),
        *("--sampling-backend", "pytorch", "--disable-cuda-graph", "--dtype", "float32"),
        *("--sleep-on-idle", "--max-total-tokens", "16384"),
    )


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_every_profile_keeps_the_tokenizer_and_drops_the_radix_cache(model: str, profile: str) -> None:
    argv = plan_of(model, profile=profile).argv
    assert "--disable-radix-cache" in argv
    assert "--skip-tokenizer-init" not in argv


@pytest.mark.parametrize("given", [("--max-total-tokens", "64"), ("--max-total-tokens=64",), ("--max-total", "64")])
def test_pass_through_wins_over_the_profile(model: str, given: tuple[str, ...]) -> None:
    plan = plan_of(model, profile="cpu", pass_through=given)
    assert "16384" not in plan.argv
    assert plan.argv[-len(given) :] == given
    assert plan.overridden == ("--max-total-tokens",)


@pytest.mark.parametrize("flag", ["--port", "--host", "--model-path", "--model", "--port=1"])
def test_pass_through_may_not_name_what_the_launcher_must_know(model: str, flag: str) -> None:
    with pytest.raises(UsageError, match="before it"):
        plan_of(model, pass_through=(flag, "x"))


KEYED = [
    ("--api-key", "s3cret"),
    ("--api-key=s3cret",),
    ("--api", "s3cret"),
    ("--admin-api-key", "s3cret"),
    ("--ssl-keyfile-password=s3cret",),
    ("--api-key", "--s3cret", "--tp-size", "2"),
]


@pytest.mark.parametrize("given", KEYED, ids=" ".join)
def test_keys_are_never_shown(model: str, given: tuple[str, ...]) -> None:
    plan = plan_of(model, pass_through=given)
    assert any("s3cret" in argument for argument in plan.argv)
    assert "s3cret" not in "\n".join(dry_run_lines(plan, {}))
    assert len(without_secrets(plan.argv)) == len(plan.argv)


@given(
    st.lists(st.sampled_from(["--tp-size", "8", "--api-key", "--api-key=k", "--a", "--attention-backend=x", "k", ""]))
)
def test_what_is_no_key_is_shown_as_it_is(arguments: list[str]) -> None:
    shown = without_secrets(arguments)
    assert len(shown) == len(arguments)
    for before, mine, now in zip([None, *arguments], arguments, shown, strict=False):
        hidden = before in {"--api-key", "--a"} or mine == "--api-key=k"
        assert hidden or now == mine


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_nccl_settings_are_added_in_every_profile(model: str, profile: str) -> None:
    environment = plan_of(model, profile=profile).environment
    assert {name: value for name, value in environment.items() if name.startswith("NCCL_")} == {
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "NCCL_P2P_LEVEL": "SYS",
        "NCCL_MAX_NCHANNELS": "16",
        "NCCL_BUFFSIZE": "16777216",
        "NCCL_NTHREADS": "512",
    }


def test_nccl_settings_of_the_user_are_kept(model: str) -> None:
    environment = plan_of(model, environment={"NCCL_ALGO": "Tree", "NCCL_PROTO": ""}).environment
    assert environment["NCCL_ALGO"] == "Tree"
    assert environment["NCCL_PROTO"] == ""
    assert environment["NCCL_NTHREADS"] == "512"


def test_capture_environment(model: str) -> None:
    capture = CaptureRequest(dump_dir=Path("/scratch"), boundaries=(59, 3, 31), writers="spread")
    plan = plan_of(model, capture=capture, environment={"SGLANG_HS_RING_BYTES": "1", "PATH": "/bin"})
    ours = {name: value for name, value in plan.environment.items() if name.startswith("SGLANG_HS_")}
    assert ours == {
        "SGLANG_HS_DUMP_DIR": "/scratch",
        "SGLANG_HS_BOUNDARIES": "3,31,59",
        "SGLANG_HS_WRITERS": "spread",
        "SGLANG_HS_MODE": "plugin",
        "SGLANG_HS_NONCE": plan.nonce,
        "SGLANG_HS_RING_BYTES": "1",
    }
    assert plan.environment["PATH"] == "/bin"


def test_no_capture_leaves_no_variable_of_the_surrounding_shell(model: str) -> None:
    surrounding = {
        "SGLANG_HS_DUMP_DIR": "/elsewhere",
        "SGLANG_HS_BOUNDARIES": "1",
        "SGLANG_HS_WRITERS": "all",
        "SGLANG_HS_NONCE": "0" * 16,
        "SGLANG_HS_MODE": "source",
        "SGLANG_HS_CPU_PROFILE": "1",
    }
    plan = plan_of(model, capture=None, environment=surrounding)
    assert [name for name in plan.environment if name.startswith("SGLANG_HS_")] == []
    assert plan.boundaries is None


def test_each_launch_has_its_own_nonce(model: str) -> None:
    nonces = {plan_of(model).nonce for _ in range(8)}
    assert len(nonces) == 8
    assert all(len(nonce) == 16 and int(nonce, 16) >= 0 for nonce in nonces)


@pytest.mark.parametrize(
    ("profile", "boundaries", "eagle_ids", "expected"),
    [
        ("default", None, None, (2, 30, 58)),
        ("kimi-k2.5", None, None, (3, 31, 59)),
        ("kimi-k2.5", (1, 2), None, (1, 2)),
        ("kimi-k2.5", None, (2, 30), (3, 31)),
        ("cpu", None, (2, 30, 58), (3, 31, 59)),
    ],
)
def test_boundaries(
    model: str,
    profile: str,
    boundaries: tuple[int, ...] | None,
    eagle_ids: tuple[int, ...] | None,
    expected: tuple[int, ...],
) -> None:
    capture = CaptureRequest(dump_dir=Path("/scratch"), boundaries=boundaries, eagle_ids=eagle_ids)
    assert plan_of(model, profile=profile, capture=capture).boundaries == expected


@pytest.mark.parametrize("boundaries", [(61,), (0,), (3, 3)])
def test_impossible_boundaries_are_refused_before_anything_starts(model: str, boundaries: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="61 layers"):
        plan_of(model, capture=CaptureRequest(dump_dir=Path("/scratch"), boundaries=boundaries))


def test_a_model_that_is_not_local_leaves_the_range_check_to_the_capture() -> None:
    plan = plan_of("some/model", capture=CaptureRequest(dump_dir=Path("/scratch"), eagle_ids=(2, 1)))
    assert plan.boundaries == (2, 3)
    assert plan_of("some/model").boundaries is None
    assert "SGLANG_HS_BOUNDARIES" not in plan_of("some/model").environment


def test_nested_and_overridden_configs(tmp_path: Path) -> None:
    nested = write_model(
        tmp_path / "nested",
        {"architectures": ["Kimi"], "text_config": {"num_hidden_layers": 61, "hidden_size": 8}},
    )
    plan = plan_of(nested)
    assert plan.model is not None
    assert (plan.model.num_layers, plan.model.hidden_size) == (61, 8)
    flat = write_model(tmp_path / "flat", {"num_hidden_layers": 61})
    cut = plan_of(flat, pass_through=("--json-model-override-args", '{"num_hidden_layers": 9}'))
    assert cut.boundaries == (2, 4, 6)


@pytest.mark.parametrize("config", ["", "[]", '{"model_type": "vae"}'])
def test_unusable_model_folders(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UsageError, match=r"config\.json"):
        plan_of(str(tmp_path))


def test_missing_model_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        plan_of(str(tmp_path / "gone"))
    with pytest.raises(UsageError, match=r"no config\.json"):
        plan_of(str(tmp_path))


def test_relative_model_paths_are_made_absolute(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(model).parent)
    assert plan_of("model").request.model_path == model


def test_cpu_environment(model: str) -> None:
    environment = plan_of(
        model, profile="cpu", pass_through=("--tp", "2"), environment={"PYTHONPATH": "/mine"}
    ).environment
    assert environment["SGLANG_HS_CPU_PROFILE"] == "1"
    assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["SGLANG_CPU_OMP_THREADS_BIND"].count("|") == 1
    assert environment["PYTHONPATH"].endswith(":/mine")
    disabled = environment["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen2" in disabled
    assert not {"llama", "registry", "utils"} & set(disabled)
    assert "SGLANG_HS_CPU_PROFILE" not in plan_of(model).environment


def test_topology() -> None:
    assert Topology.of(("--tp", "8", "--dp-size=2")).ranks == 16
    assert Topology.of(("--tensor-parallel-size", "8", "--dp-size", "2", "--enable-dp-attention")).ranks == 8
    assert Topology.of(("--tp-size", "16", "--nnodes", "2")).local_ranks == 8
    assert Topology.of(()).local_ranks == 1
    with pytest.raises(UsageError, match="not a number"):
        Topology.of(("--tp", "two"))


def test_flag_values_and_merging() -> None:
    assert flag_value(("--a-b", "1", "--a-b=2"), "--a-b") == "2"
    assert flag_value(("--c",), "--a-b") is None
    assert merge_arguments((("--x-y", None), ("--z-w", "1")), ("--z-w=2",)) == (("--x-y",), ("--z-w",))


def test_urls(model: str) -> None:
    request = LaunchRequest(model_path=model, capture=None, host="0.0.0.0", port=1)
    assert make_plan(request, {}).url == "http://127.0.0.1:1"
    assert make_plan(LaunchRequest(model_path=model, capture=None, host="::", port=1), {}).url == "http://[::1]:1"


def test_unknown_profile(model: str) -> None:
    with pytest.raises(UsageError, match="default, cpu, kimi"):
        plan_of(model, profile="gpu")
