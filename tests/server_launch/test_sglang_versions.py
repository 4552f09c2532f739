"""The version table, the capture mode it leads to, and the command lines that come of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from hs_formats.errors import PreflightError, UsageError
from hs_server import cli
from hs_server.arguments import Topology
from hs_server.capture_mode import check_mode, mode_arguments, refuse_unknown_flags
from hs_server.dry_run import dry_run_lines
from hs_server.plan import CaptureRequest, LaunchRequest, make_plan
from hs_server.versions import FLAGS, READ, release

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "dry_run"
DEEPSEEK = ("DeepseekV3ForCausalLM",)
FUSION_OFF = "--enforce-disable-flashinfer-allreduce-fusion"


def topology(tp: int) -> Topology:
    return Topology(tp=tp, dp=1, pp=1, nodes=1, dp_attention=False)


def arguments(
    mode: str, version: str, *, tp: int = 1, architectures: tuple[str, ...] = DEEPSEEK, given: str = ""
) -> str:
    made = mode_arguments(
        mode, release(version), architectures=architectures, topology=topology(tp), given=given.split()
    )
    assert all(value is None for _, value in made)
    return " ".join(flag for flag, _ in made)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.5.20", (0, 5, 20)),
        ("0.5.10.post1", (0, 5, 10)),
        ("0.5.21rc2", (0, 5, 21)),
        ("0.5.20+cu130", (0, 5, 20)),
        ("0.0.0.dev0", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_versions_are_read(text: str, number: tuple[int, int, int] | None) -> None:
    assert release(text).number == number
    assert bool(release(text).unread) == (number is None)


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.9", ""),
        ("0.5.10.post1", "--disable-piecewise-cuda-graph"),
        ("0.5.13", "--disable-piecewise-cuda-graph"),
        ("0.5.14", "--disable-prefill-cuda-graph"),
        ("0.5.20", "--disable-prefill-cuda-graph"),
        ("0.6.0", "--disable-prefill-cuda-graph"),
        ("unknown", "--disable-prefill-cuda-graph"),
    ],
)
def test_source_mode_has_prefill_graphs_off_and_decode_graphs_on(version: str, flags: str) -> None:
    assert arguments("source", version) == flags
    assert arguments("plugin", version) == ""
    assert "decode" not in flags
    assert "--disable-cuda-graph" not in flags


@given(st.sampled_from(READ), st.sampled_from(["plugin", "source"]), st.integers(1, 8))
def test_nothing_is_added_that_the_version_does_not_take(version: str, mode: str, tp: int) -> None:
    for flag in arguments(mode, version, tp=tp).split():
        refuse_unknown_flags([flag], release(version))
        assert release(version).takes(flag)


def test_all_reduces_are_not_fused_where_ranks_would_capture_parts_of_sums() -> None:
    assert arguments("plugin", "0.5.13", tp=2) == FUSION_OFF
    assert arguments("plugin", "0.5.13", tp=1) == ""
    assert arguments("plugin", "0.5.14", tp=2) == ""
    assert arguments("plugin", "0.5.13", tp=2, architectures=("LlamaForCausalLM",)) == ""
    assert arguments("plugin", "0.5.13", tp=2, architectures=("KimiK25ForConditionalGeneration",)) == FUSION_OFF
    assert arguments("plugin", "0.5.22", tp=2, architectures=("GptOssForCausalLM",)) == FUSION_OFF
    assert arguments("plugin", "0.5.23", tp=2, architectures=("GptOssForCausalLM",)) == ""
    assert arguments("source", "0.5.9", tp=2) == ""  # there is no such flag; the capture refuses where they are fused


@pytest.mark.parametrize(
    ("version", "given"),
    [
        ("0.5.9", "--enable-piecewise-cuda-graph"),
        ("0.5.12", "--enforce-piecewise-cuda-graph"),
        ("0.5.20", "--cuda-graph-backend-prefill breakable"),
        ("0.5.20", "--cuda-graph-backend-prefill=full"),
        ("0.5.23", "--cuda-graph-config {}"),
    ],
)
def test_source_mode_refuses_prefill_graphs(version: str, given: str) -> None:
    with pytest.raises(UsageError, match="prefill graphs on"):
        arguments("source", version, given=given)
    arguments("plugin", version, given=given)


def test_source_mode_takes_prefill_graphs_that_are_off_already() -> None:
    assert (
        arguments("source", "0.5.20", given="--cuda-graph-backend-prefill disabled") == "--disable-prefill-cuda-graph"
    )


@pytest.mark.parametrize("version", [*READ, "0.7.1", "unknown"])
def test_every_version_that_is_known_takes_both_modes(version: str) -> None:
    for mode in ("plugin", "source"):
        check_mode(mode, release(version), architectures=DEEPSEEK)
        check_mode(mode, release(version), architectures=())
    own = version in {"0.5.9", "0.5.10.post1"}
    assert release(version).main_module == ("hs_server.sglang_main" if own else "sglang.launch_server")


@pytest.mark.parametrize(
    ("mode", "version", "architecture", "reason"),
    [
        ("plugin", "0.5.8", "DeepseekV3ForCausalLM", "too old"),
        ("source", "0.5.8", "DeepseekV3ForCausalLM", "too old"),
        ("source", "0.5.20", "LlamaForCausalLM", "DeepSeek-V2/V3 and Kimi only"),
    ],
)
def test_what_cannot_be_captured_is_refused(mode: str, version: str, architecture: str, reason: str) -> None:
    with pytest.raises(PreflightError, match=reason):
        check_mode(mode, release(version), architectures=(architecture,))


def test_arguments_of_other_versions_are_refused_with_their_successor() -> None:
    with pytest.raises(UsageError, match=r"before 0\.5\.20\n.*--disable-prefill-cuda-graph"):
        refuse_unknown_flags(["--disable-piecewise-cuda-graph"], release("0.5.20"))
    with pytest.raises(UsageError, match=r"from 0\.5\.22 on\n.*--enable-dp-attention"):
        refuse_unknown_flags(["--attn-dp-size=2"], release("0.5.20"))
    for version in ("0.9.0", "unknown"):  # of these nothing is known
        refuse_unknown_flags([flag.name for flag in FLAGS], release(version))
    refuse_unknown_flags(["--some-new-flag", "value"], release("0.5.9"))


@pytest.mark.parametrize(
    ("name", "version", "mode", "profile", "sglang"),
    [
        ("0.5.9-deepseek", "0.5.9", "source", "default", "--tp-size 8"),
        ("0.5.10.post1-deepseek", "0.5.10.post1", "plugin", "default", "--tp-size 8"),
        ("0.5.13-deepseek", "0.5.13", "plugin", "default", "--tp-size 8"),
        ("0.5.20-kimi", "0.5.20", "plugin", "kimi-k2.5", "--tp-size 8 --trust-remote-code"),
        ("0.5.23-source", "0.5.23", "source", "default", "--tp-size 8 --disable-custom-all-reduce"),
        ("0.5.99-newer", "0.5.99", "plugin", "default", ""),
    ],
)
def test_dry_runs_are_as_recorded(
    name: str, version: str, mode: str, profile: str, sglang: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    config = {"architectures": list(DEEPSEEK), "num_hidden_layers": 61, "hidden_size": 7168}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    capture = CaptureRequest(dump_dir=Path("/dev/shm/sglang_hs"), mode=mode)
    request = LaunchRequest(
        model_path="model", capture=capture, profile=profile, pass_through=tuple(sglang.split()), port=8000
    )
    surrounding = {"PATH": "/bin", "NCCL_ALGO": "Tree", "SGLANG_HS_BOUNDARIES": "9", "SGLANG_HS_NONCE": "0" * 16}
    lines = dry_run_lines(make_plan(request, surrounding, sglang_version=version), surrounding)
    text = "\n".join(lines).replace(sys.executable, "python").replace(str(tmp_path), "/models") + "\n"
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("HS_UPDATE_DRY_RUN") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.read_text() == text, "a launch changed: run the tests once with HS_UPDATE_DRY_RUN=1 and read the diff"


@pytest.mark.parametrize("version", READ)
def test_every_version_of_the_table_has_a_dry_run(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["launch", "--model-path", "deepseek-ai/DeepSeek-V3", "--dry-run"]
    assert cli.main([*launch, "--assume-sglang-version", version, "--", "--tp-size", "8"]) == 0
    out = capsys.readouterr().out
    assert f"# SGLang {version}, profile default, capture mode plugin" in out
    assert out.splitlines()[-1].endswith("--tp-size 8")
    assert "NONCE" not in out


def test_a_dry_run_of_what_is_installed_is_checked_like_a_launch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = ["launch", "--model-path", "deepseek-ai/DeepSeek-V3"]
    assert cli.main([*launch, "--dry-run", "--capture-mode", "source"]) == 3
    assert "is not patched" in capsys.readouterr().err
    monkeypatch.setenv("SGLANG_PLUGINS", "others")
    assert cli.main([*launch, "--dry-run"]) == 3
    assert "excludes the plugin" in capsys.readouterr().err
    assert cli.main([*launch, "--assume-sglang-version", "0.5.9"]) == 2
    assert "goes with --dry-run only" in capsys.readouterr().err
