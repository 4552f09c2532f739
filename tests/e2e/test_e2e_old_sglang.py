"""SGLang 0.5.10.post1 and 0.5.9, which have no plugins: hooks placed by our main module, and the patch.

Llama through the hooks of 0.5.10.post1: one server, under a minute. HS_TEST_ALL_MODELS=1 adds the other cases, in which
DeepSeek has shorter prompts: its attention needs a second a chunk there.
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
from random_mix import LONG_TOKENS, run_mix
from sglang_overlay import overlay_sglang
from tiny_models import text_model

pytestmark = pytest.mark.sglang

CHUNK_TOKENS = 16
SEED = 20_261_131
ALL = pytest.mark.skipif(os.environ.get("HS_TEST_ALL_MODELS") != "1", reason="HS_TEST_ALL_MODELS=1 runs it")


@pytest.mark.parametrize(
    ("version", "model", "mode"),
    [
        ("0.5.10.post1", "tiny-llama", "plugin"),
        pytest.param("0.5.10.post1", "tiny-dsv3", "plugin", marks=ALL),
        pytest.param("0.5.10.post1", "tiny-dsv3", "source", marks=ALL),
        pytest.param("0.5.9", "tiny-llama", "plugin", marks=ALL),
        pytest.param("0.5.9", "tiny-dsv3", "source", marks=ALL),
    ],
)
def test_a_random_mix_equals_transformers(
    version: str, model: str, mode: str, tmp_path: Path, record_property: Any
) -> None:
    site = sglang_folder(version)
    if mode == "source":
        site = overlay_sglang(site, tmp_path / "site").parent
        environment = {**os.environ, "PYTHONPATH": str(site)}
        subprocess.run([command("hs-server"), "patch"], env=environment, check=True, capture_output=True)
    with running(model, site, tmp_path, version=version, chunk_tokens=CHUNK_TOKENS, mode=mode) as server:
        reference = Reference(text_model(model), BOUNDARIES)
        long_tokens = LONG_TOKENS if model == "tiny-llama" else LONG_TOKENS // 5
        said = run_mix(server, reference, chunk_tokens=CHUNK_TOKENS, seed=SEED, long_tokens=long_tokens)
    record_property("result", said)
    print(said)
