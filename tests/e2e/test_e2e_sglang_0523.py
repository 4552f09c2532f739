"""SGLang 0.5.23, whose wheel tools/sglang.sh puts beside the packages of .venv: values as transformers has them.

DeepSeek-V3 in plugin and in source mode, byte for byte the same, and the Kimi-K2.5 wrapper: three servers, about three
minutes on two cores. HS_TEST_ALL_MODELS=1 adds Llama, Qwen3 and Qwen3-MoE.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chain import Server, command, launch_server
from checker import Reference
from hs_formats.control import ControlFolder
from other_sglang import sglang_folder
from random_mix import run_mix, send_one_by_one
from sglang_overlay import file_hashes, overlay_sglang
from small_tmpfs import small_tmpfs
from tiny_models import text_model, tiny_model

pytestmark = pytest.mark.sglang

VERSION = "0.5.23"
BOUNDARIES = (1, 4, 7)
LENGTHS = [1, 2, 15, 16, 17, 40, 100]
CHUNKS = {"tiny-dsv3": 16, "tiny-kimi": 20, "tiny-llama": 11, "tiny-qwen3": 16, "tiny-qwen3-moe": 29}
SEED = 20_261_130
ALL = os.environ.get("HS_TEST_ALL_MODELS") == "1"


@pytest.fixture(scope="module")
def site() -> Path:
    return sglang_folder(VERSION)


@contextlib.contextmanager
def running(model: str, site: Path, work: Path, *options: str) -> Iterator[Server]:
    chunk = str(CHUNKS[model])
    sglang = ["--chunked-prefill-size", chunk, *(["--trust-remote-code"] if model == "tiny-kimi" else [])]
    with small_tmpfs(work / "scratch", options="size=64m,mode=0700") as scratch:
        server, _ = launch_server(
            tiny_model(model),
            scratch,
            work,
            options=["--boundaries", ",".join(map(str, BOUNDARIES)), *options],
            sglang=sglang,
            environment={"PYTHONPATH": str(site), "HF_MODULES_CACHE": str(work / "modules")},
        )
        try:
            assert {marker.sglang_version for marker in ControlFolder(scratch).live_markers()} == {VERSION}
            yield server
        finally:
            server.stop()


def test_deepseek_in_both_modes(site: Path, tmp_path: Path, record_property: Any) -> None:
    with running("tiny-dsv3", site, tmp_path / "plugin") as server:
        said = run_mix(
            server, Reference(text_model("tiny-dsv3"), BOUNDARIES), chunk_tokens=CHUNKS["tiny-dsv3"], seed=SEED
        )
        by_plugin = send_one_by_one(server, LENGTHS, seed=5)
    record_property("result", said)
    print(said)

    package = overlay_sglang(site, tmp_path / "site")
    before = file_hashes(package)
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    subprocess.run([command("hs-server"), "patch"], env=environment, check=True, capture_output=True)
    with running("tiny-dsv3", package.parent, tmp_path / "source", "--capture-mode", "source") as server:
        assert {marker.capture_mode for marker in ControlFolder(server.scratch).live_markers()} == {"source"}
        by_source = send_one_by_one(server, LENGTHS, seed=5)
    assert len(by_plugin) > len(LENGTHS)
    assert by_source == by_plugin
    subprocess.run([command("hs-server"), "patch", "--revert"], env=environment, check=True, capture_output=True)
    assert file_hashes(package) == before
    shutil.rmtree(package.parent)


@pytest.mark.parametrize(
    "model",
    [
        "tiny-kimi",
        *(
            pytest.param(name, marks=pytest.mark.skipif(not ALL, reason="HS_TEST_ALL_MODELS=1 runs it"))
            for name in ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe")
        ),
    ],
)
def test_a_random_mix_equals_transformers(site: Path, tmp_path: Path, model: str, record_property: Any) -> None:
    with running(model, site, tmp_path) as server:
        assert ("for Kimi VLM startup warmup" in server.log.read_text()) == (model == "tiny-kimi")
        said = run_mix(server, Reference(text_model(model), BOUNDARIES), chunk_tokens=CHUNKS[model], seed=SEED)
    record_property("result", said)
    print(said)
