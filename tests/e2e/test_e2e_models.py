"""Every model family through the real capture: every complete record equals transformers, aborted ones are no record.

DeepSeek-V3 and Llama on the servers that other tests use too, the others on one of their own, with other chunk sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chain import ServerFactory, launch_server
from checker import Reference
from random_mix import run_mix
from small_tmpfs import small_tmpfs
from tiny_models import text_model, tiny_model

pytestmark = pytest.mark.sglang

BOUNDARIES = (1, 4, 7)
SEED = 20_261_129

EXTRA = {"tiny-kimi": ("--trust-remote-code",)}


@pytest.mark.parametrize("model", ["tiny-dsv3", "tiny-llama"])
def test_a_random_mix_on_a_server_that_is_in_use(
    servers: ServerFactory, references: Callable[..., Reference], model: str, record_property: Any
) -> None:
    server = servers(model, "--boundaries", "1,4,7")
    said = run_mix(server, references(model, BOUNDARIES), chunk_tokens=16, seed=SEED + 1)
    record_property("result", said)
    print(said)


@pytest.mark.parametrize(("model", "chunk_tokens"), [("tiny-qwen3", 7), ("tiny-qwen3-moe", 33), ("tiny-kimi", 16)])
def test_a_random_mix_equals_transformers_and_aborted_requests_are_no_records(
    tmp_path: Path, model: str, chunk_tokens: int, record_property: Any
) -> None:
    with small_tmpfs(tmp_path / "scratch", options="size=64m,mode=0700") as scratch:
        options = ["--boundaries", ",".join(map(str, BOUNDARIES))]
        sglang = ["--chunked-prefill-size", str(chunk_tokens), *EXTRA.get(model, ())]
        environment = {"HF_MODULES_CACHE": str(tmp_path / "modules")}  # code of the model's folder is copied there
        server, _ = launch_server(
            tiny_model(model), scratch, tmp_path, options=options, sglang=sglang, environment=environment
        )
        try:
            # SGLang's own warm-up (with an image, where the model takes one) has run and left nothing.
            log = server.log.read_text()
            assert "The server is fired up" in log
            assert ("for Kimi VLM startup warmup" in log) == ("kimi" in model)
            said = run_mix(server, Reference(text_model(model), BOUNDARIES), chunk_tokens=chunk_tokens, seed=SEED)
        finally:
            server.stop()
    record_property("result", said)
    print(said)
