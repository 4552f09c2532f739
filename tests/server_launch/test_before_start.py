"""What is checked before SGLang is started: GPUs by a fake `nvidia-smi`, room by facts, leftovers, NCCL profiles."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from hs_formats.control import ControlFolder
from hs_formats.errors import PreflightError, UsageError
from hs_server.before_start import check_before_start
from hs_server.exposure import exposure_lines
from hs_server.gpus import BUSY_BYTES, Gpu, check_gpus, parse_gpus, taken_gpus, visible_gpus
from hs_server.leftovers import leftover_lines
from hs_server.model_config import ModelConfig
from hs_server.nccl_profiles import nccl_environment, nccl_profile_names, parse_nccl_profile
from hs_server.orphans import launch_variables
from hs_server.plan import CaptureRequest, LaunchPlan, LaunchRequest, make_plan
from hs_server.preflight import check_model_class
from hs_server.room_checks import SHM_BYTES, RoomFacts, judge_room, read_room
from parts import drop_part

GIB = 1 << 30


def plan_of(
    *pass_through: str, profile: str = "default", scratch: Path | None = None, **environment: str
) -> LaunchPlan:
    capture = CaptureRequest(dump_dir=scratch) if scratch is not None else None
    request = LaunchRequest(model_path="some/model", capture=capture, profile=profile, pass_through=pass_through)
    return make_plan(request, {"PATH": os.environ["PATH"], **environment})


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Puts a fake on PATH that tells of GPUs with so many MiB in use, and of processes as (GPU, pid)."""

    def make(*used_mib: int, processes: tuple[tuple[int, int], ...] = (), code: int = 0) -> dict[str, str]:
        gpus = "".join(f"{i}, GPU-{i}aaa, {used}, 143771\n" for i, used in enumerate(used_mib))
        apps = "".join(f"GPU-{gpu}aaa, {pid}\n" for gpu, pid in processes)
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "nvidia-smi"
        script.write_text(
            f"#!{sys.executable}\nimport sys\n"
            f"sys.stdout.write({gpus!r} if '--query-gpu' in sys.argv[1] else {apps!r})\nsys.exit({code})\n"
        )
        script.chmod(0o755)
        return {"PATH": str(folder)}

    return make


def test_free_gpus_are_named(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    environment = nvidia_smi(4, 600, 50_000, 0)
    assert check_gpus(plan_of("--tp-size", "2"), environment, share=False) == ["gpus      0, 1"]
    chosen = environment | {"CUDA_VISIBLE_DEVICES": "3,GPU-0"}
    assert check_gpus(plan_of("--tp-size", "2"), chosen, share=False) == ["gpus      3, 0"]
    assert check_gpus(plan_of("--base-gpu-id", "1", "--gpu-id-step", "2"), environment, share=False) == ["gpus      1"]


def test_a_gpu_in_use_is_refused_with_its_holder(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    with subprocess.Popen(
        ["sleep", "60"], env={**os.environ, **launch_variables(port=8123, state=Path("/state"))}
    ) as ours:
        environment = nvidia_smi(4, 70_000, processes=((1, os.getpid()), (1, ours.pid), (1, 2**31 - 1)))
        with pytest.raises(PreflightError, match="GPUs are in use: 1") as refused:
            check_gpus(plan_of("--tp-size", "2"), environment, share=False)
        ours.kill()
    text = str(refused.value)
    assert f"GPU 1: {70_000 << 20:,} of {143_771 << 20:,} bytes, by pid {os.getpid()} (" in text
    assert "pytest" in text
    assert f"pid {ours.pid} (sleep 60; `hs-server stop --port 8123`)" in text
    assert f"pid {2**31 - 1} (of another user)" in text
    assert "--share-gpus" in text
    assert check_gpus(plan_of("--tp-size", "2"), environment, share=True) == [
        "gpus      0, 1, of them in use by others: 1 (--share-gpus)"
    ]


def test_a_holder_that_cannot_be_seen(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    naps: list[float] = []
    said: list[str] = []
    with pytest.raises(PreflightError, match="by whom cannot be seen from here"):
        check_gpus(plan_of(), nvidia_smi(70_000), share=False, pause=naps.append, say=said.append)
    assert sum(naps) == 15
    assert said == ["gpus      0 hold memory of no process that is seen here: waiting until it is freed"]


def test_memory_of_a_process_that_has_just_ended_is_waited_for(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    naps: list[float] = []

    def pause(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            nvidia_smi(4)

    environment = nvidia_smi(70_000, processes=((0, 2**31 - 1),))
    assert check_gpus(plan_of(), environment, share=False, pause=pause) == ["gpus      0"]
    assert len(naps) == 3


def test_too_few_gpus(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    with pytest.raises(PreflightError, match="4 ranks need 4 GPUs, and 2 are visible"):
        check_gpus(plan_of("--tp-size", "4"), nvidia_smi(0, 0), share=True)
    with pytest.raises(PreflightError, match="2 ranks need 2 GPUs, and 1 are visible"):
        check_gpus(plan_of("--tp-size", "2"), nvidia_smi(0, 0) | {"CUDA_VISIBLE_DEVICES": "1,7,0"}, share=False)


def test_where_nothing_can_be_told_it_is_said(nvidia_smi: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    assert check_gpus(plan_of(), {"PATH": str(tmp_path)}, share=False) == [
        "gpus      not looked at: there is no nvidia-smi; a machine without GPUs needs --profile cpu"
    ]
    (line,) = check_gpus(plan_of(), nvidia_smi(0, code=9), share=False)
    assert line.startswith("gpus      not looked at: nvidia-smi: ")
    parts = nvidia_smi(0) | {"CUDA_VISIBLE_DEVICES": "MIG-1"}
    assert check_gpus(plan_of(), parts, share=False) == [
        "gpus      not looked at: CUDA_VISIBLE_DEVICES names parts of GPUs"
    ]


def test_a_cpu_launch_asks_for_no_gpu(nvidia_smi: Callable[..., dict[str, str]]) -> None:
    environment = nvidia_smi(70_000)
    assert check_gpus(plan_of(profile="cpu"), environment, share=False) == []
    assert check_gpus(plan_of("--device", "cpu"), environment, share=False) == []


@given(st.text(alphabet="0123456789,. GPU-aN[/]\n", max_size=200), st.text(alphabet="GPU-0a, 19\n", max_size=80))
def test_what_nvidia_smi_says_never_breaks_the_reading(gpus: str, processes: str) -> None:
    for gpu in parse_gpus(gpus, processes):
        assert gpu.used_bytes >= 0


@given(st.integers(1, 8), st.permutations(range(8)), st.integers(0, 8))
def test_visible_gpus_are_numbered_as_cuda_does(count: int, order: list[int], cut: int) -> None:
    gpus = [Gpu(index, f"GPU-{index}", 0, GIB) for index in range(count)]
    found = visible_gpus(gpus, ",".join(map(str, order[:cut])))
    assert found is not None
    wanted = order[:cut]
    first_bad = next((i for i, index in enumerate(wanted) if index >= count), len(wanted))
    assert [gpu.index for gpu in found] == wanted[:first_bad]
    if len(found) >= 3:
        assert taken_gpus(found, count=2, base=0, step=2) == [found[0], found[2]]


FACTS: dict[str, Any] = {
    "free": 20 * GIB,
    "reserve": GIB,
    "memory_left": 100 * GIB,
    "in_memory": True,
    "shm_total": 64 * GIB,
}
LAUNCH: dict[str, Any] = {"ranks": 8, "gpu": True, "capturing": True, "ring_bytes": 2 * GIB, "token_bytes": 57344}


@pytest.mark.parametrize(
    ("facts", "launch", "told"),
    [
        ({}, {}, "room      20,401,094,656 bytes: about 355,172 tokens"),
        ({}, {"token_bytes": 0}, "room      20,401,094,656 bytes"),
        ({"memory_left": 17 * GIB}, {}, "room      1,073,741,824 bytes, bound by the memory left"),
        ({"memory_left": None}, {}, "room      20,401,094,656 bytes: about"),
        ({"memory_left": 3 * GIB, "in_memory": False}, {"gpu": False}, "room      20,401,094,656 bytes: about"),
        ({"free": 2 * GIB}, {}, "that is little"),
        ({"shm_total": 64 << 20}, {"ranks": 1}, "room"),
        ({"shm_total": 64 << 20}, {"gpu": False}, "room"),
    ],
)
def test_room_is_told(facts: dict[str, Any], launch: dict[str, Any], told: str) -> None:
    assert told in "\n".join(judge_room(RoomFacts(**FACTS | facts), **LAUNCH | launch))


@pytest.mark.parametrize(
    ("facts", "launch", "words"),
    [
        ({"shm_total": 64 << 20}, {}, r"/dev/shm holds 67,108,864 bytes, and NCCL between 8 ranks .*\n.*--shm-size=1g"),
        ({"shm_total": SHM_BYTES - 1}, {"capturing": False}, "NCCL between 8 ranks"),
        ({"memory_left": 15 * GIB}, {}, r"the rings of 8 ranks take 17,179,869,184\n.*SGLANG_HS_RING_BYTES lower"),
        ({"free": GIB + (1 << 20)}, {}, "scratch has room for 1,048,576 bytes, and the launch alone needs"),
        ({"memory_left": 16 * GIB}, {}, "scratch has room for 0 bytes, bound by the memory left"),
    ],
)
def test_too_little_room_is_refused(facts: dict[str, Any], launch: dict[str, Any], words: str) -> None:
    with pytest.raises(PreflightError, match=words):
        judge_room(RoomFacts(**FACTS | facts), **LAUNCH | launch)


def test_room_is_read_from_the_machine(tmp_path: Path) -> None:
    facts = read_room(tmp_path, shared_memory=tmp_path)
    assert facts.free > 0
    assert facts.reserve > 0
    assert facts.shm_total > facts.free
    assert facts.memory_left is None or facts.memory_left > 0
    assert read_room(tmp_path, shared_memory=tmp_path / "none").shm_total == 0


def test_leftovers_are_reported_and_kept(tmp_path: Path) -> None:
    ControlFolder(tmp_path).create()
    assert leftover_lines(tmp_path) == []
    for rid in ("hs-0badcafe-00000001-00", "hs-0badcafe-00000002-00", "hs-00c0ffee-00000001-00"):
        drop_part(tmp_path, rid, 0, 4, 4)
    drop_part(tmp_path, "hs-00000000-00000001-00", 0, 4, 4)
    (tmp_path / ".hs-0badcafe-00000003-00.t0000000-0000004of0000004.r00.pt.0123456789abcdef.tmp").touch()
    (tmp_path / "somebody's").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    first, second = leftover_lines(tmp_path)
    assert first.startswith("leftovers 3 parts of earlier runs (00c0ffee, 0badcafe), ")
    assert f"start `hs-mover --src {tmp_path} --dst FOLDER`" in first
    assert second == "leftovers 1 unfinished files of servers that died: the mover removes them"
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    lines = check_before_start(plan_of(profile="cpu", scratch=tmp_path), share_gpus=False)
    assert [line for line in lines if line.startswith("leftovers")] == [first, second]
    with pytest.raises(PreflightError, match="cannot be looked at"):
        check_before_start(plan_of(profile="cpu", scratch=tmp_path / "gone"), share_gpus=False)


def test_nccl_profiles_are_files(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert nccl_environment("default", environment)["NCCL_PROTO"] == "LL"
    assert nccl_environment("none", environment) == {}
    own = tmp_path / "hs-extract" / "nccl"
    own.mkdir(parents=True)
    (own / "mine.env").write_text("# fast\n\nNCCL_ALGO=Tree\nNCCL_DEBUG=INFO\n")
    assert nccl_profile_names(environment) == ["default", "mine", "none"]
    assert nccl_environment("mine", environment | {"NCCL_DEBUG": "WARN"}) == {"NCCL_ALGO": "Tree"}
    assert nccl_environment(str(own / "mine.env"), {}) == {"NCCL_ALGO": "Tree", "NCCL_DEBUG": "INFO"}
    (own / "default.env").write_text("NCCL_PROTO=Simple\n")
    assert nccl_environment("default", environment) == {"NCCL_PROTO": "Simple"}
    request = LaunchRequest(model_path="some/model", capture=None, nccl_profile="mine")
    assert make_plan(request, environment).environment["NCCL_ALGO"] == "Tree"
    with pytest.raises(
        UsageError, match=r"no NCCL profile is called 'other'\n  profiles: default, mine, none; add oth"
    ):
        nccl_environment("other", environment)
    with pytest.raises(UsageError, match="no such file"):
        nccl_environment("./other", environment)
    (own / "bad.env").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="--nccl-profile "):
        nccl_environment("bad", environment)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NCCL_ALGO=Ring\nPATH=/bin", "x:2: 'PATH=/bin' is not NCCL_NAME=value"),
        ("export NCCL_ALGO=Ring", "x:1"),
        ("NCCL_ALGO=", "x:1"),
        ("NCCL_ALGO=a b", "x:1"),
        ("NCCL_ALGO=Ring\nNCCL_ALGO=Tree", "x:2: NCCL_ALGO is set twice"),
    ],
)
def test_a_bad_line_of_a_profile_is_named(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_nccl_profile(text, where="x")


@pytest.mark.parametrize(
    ("architectures", "environment", "refused"),
    [
        (("LlamaForCausalLM",), {}, False),
        (("KimiK25ForConditionalGeneration",), {}, False),
        (("NanbeigeForCausalLM",), {}, True),
        (("Gemma3ForCausalLM",), {"SGLANG_EXTERNAL_MODEL_PACKAGE": "mine"}, False),
        ((), {}, False),
    ],
)
def test_unknown_model_classes_are_refused_before_the_start(
    tmp_path: Path, architectures: tuple[str, ...], environment: dict[str, str], refused: bool
) -> None:
    model = ModelConfig(architectures=architectures, num_layers=61, hidden_size=16)
    plan = dataclasses.replace(plan_of(scratch=tmp_path, **environment), model=model)
    if not refused:
        check_model_class(plan)
        return
    with pytest.raises(PreflightError, match=r"what a NanbeigeForCausalLM captures .*\n  known are DeepSeek"):
        check_model_class(plan)
    check_model_class(dataclasses.replace(plan, request=dataclasses.replace(plan.request, capture=None)))


def test_the_limit_of_a_busy_gpu_is_above_what_an_idle_one_shows() -> None:
    assert 600 << 20 < BUSY_BYTES < 10 * GIB


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert exposure_lines(LaunchRequest(model_path="m", capture=None, host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "node7"])
def test_a_server_open_to_others_without_a_key_is_warned_of(host: str) -> None:
    open_to_all = LaunchRequest(model_path="some/model", capture=None, profile="cpu", host=host, port=8123)
    warning, remedy = exposure_lines(open_to_all)
    assert warning.startswith("warning")
    assert f"--host {host} without --api-key" in warning
    assert "port 8123" in warning
    assert "HS_API_KEY" in remedy
    plan = make_plan(open_to_all, {"PATH": os.environ["PATH"]})
    assert check_before_start(plan, share_gpus=False)[:2] == [warning, remedy]
    for key in (("--api-key", "secret"), ("--api-key=secret",)):
        assert exposure_lines(dataclasses.replace(open_to_all, pass_through=key)) == []
    assert exposure_lines(dataclasses.replace(open_to_all, pass_through=("--admin-api-key", "x"))) != []
