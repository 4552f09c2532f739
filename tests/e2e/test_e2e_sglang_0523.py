"""SGLang 0.5.23, whose wheel tools/sglang.sh puts beside the packages of .venv: values as transformers has them.

DeepSeek-V3 in plugin and in source mode, byte for byte the same, and the Kimi-K2.5 wrapper: three servers, about three
minutes on two cores. HS_TEST_ALL_MODELS=1 adds Llama, Qwen3 and Qwen3-MoE.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from chain import command
from checker import Reference
from other_sglang import BOUNDARIES, running, sglang_folder
from random_mix import run_mix, send_one_by_one
from sglang_overlay import file_hashes, overlay_sglang
from tiny_models import text_model

pytestmark = pytest.mark.sglang

VERSION = "0.5.23"
LENGTHS = [1, 2, 15, 16, 17, 40, 100]
CHUNKS = {"tiny-kimi": 20, "tiny-llama": 11, "tiny-qwen3": 16, "tiny-qwen3-moe": 29}
SEED = 20_261_130
ALL = pytest.mark.skipif(os.environ.get("HS_TEST_ALL_MODELS") != "1", reason="HS_TEST_ALL_MODELS=1 runs it")


@pytest.fixture(scope="module")
def site() -> Path:
    return sglang_folder(VERSION)


def test_deepseek_in_both_modes(site: Path, tmp_path: Path, record_property: Any) -> None:
    model = "tiny-dsv3"
    with running(model, site, tmp_path / "plugin", version=VERSION, chunk_tokens=16, mode="plugin") as server:
        said = run_mix(server, Reference(text_model(model), BOUNDARIES), chunk_tokens=16, seed=SEED)
        by_plugin = send_one_by_one(server, LENGTHS, seed=5)
    record_property("result", said)
    print(said)

    package = overlay_sglang(site, tmp_path / "site")
    before = file_hashes(package)
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    subprocess.run([command("hs-server"), "patch"], env=environment, check=True, capture_output=True)
    with running(model, package.parent, tmp_path / "source", version=VERSION, chunk_tokens=16, mode="source") as server:
        by_source = send_one_by_one(server, LENGTHS, seed=5)
    assert len(by_plugin) > len(LENGTHS)
    assert by_source == by_plugin
    subprocess.run([command("hs-server"), "patch", "--revert"], env=environment, check=True, capture_output=True)
    assert file_hashes(package) == before


@pytest.mark.parametrize(
    "model", ["tiny-kimi", *(pytest.param(name, marks=ALL) for name in ("tiny-llama", "tiny-qwen3", "tiny-qwen3-moe"))]
)
def test_a_random_mix_equals_transformers(site: Path, tmp_path: Path, model: str, record_property: Any) -> None:
    with running(model, site, tmp_path, version=VERSION, chunk_tokens=CHUNKS[model], mode="plugin") as server:
        assert ("for Kimi VLM startup warmup" in server.log.read_text()) == (model == "tiny-kimi")
        said = run_mix(server, Reference(text_model(model), BOUNDARIES), chunk_tokens=CHUNKS[model], seed=SEED)
    record_property("result", said)
    print(said)
