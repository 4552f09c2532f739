"""The contestant that needs no server: transformers over one prompt after the other, a file for each.

``python -m benchmarks.peers.loop`` with `run_loop`'s arguments as JSON on standard input prints what it returns. A
process of its own gives the device back.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.checkout import ROOT, make_importable

make_importable()

from hs_formats.errors import HsError  # noqa: E402 - its path has just been made

__all__ = ["in_a_process", "run_loop", "sample_files"]

_GZIP_LEVEL = 6
"""Of gzip.open's default 9 less, as fair as can be: what SpecForge's own writer takes is slower still."""


def in_a_process(**arguments: Any) -> dict[str, Any]:
    """`run_loop` in a process of its own.

    Raises:
        HsError: it failed.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.loop"],
        input=json.dumps(arguments), capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise HsError(f"the loop failed: {(done.stderr.strip().splitlines() or ['no words'])[-1]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_loop(
    *,
    model: str,
    drawn: bool,
    device: str,
    boundaries: Sequence[int],
    vocabulary: int,
    lengths: Sequence[int],
    blocks: int,
    least_tokens: int,
    folder: str,
    gz: bool,
) -> dict[str, Any]:
    """Measure a loop.

    Args:
        model: folder; with `drawn` its config alone counts.
        device: ``cpu`` or ``cuda``.
        boundaries: whose states are kept, with the last one.
        vocabulary: ids below this are drawn.
        lengths: tokens of a prompt, one after the other.
        blocks: of each length.
        least_tokens: of a block.
        folder: for the files, removed after each block.
        gz: as SpecForge writes them.

    Returns:
        ``cells``: tokens/s of each block by ``<tokens>x1``; ``bytes`` of all files; ``requests``.
    """
    import torch

    loaded = _load(model, drawn, device)
    found: dict[str, Any] = {"cells": {}, "bytes": 0, "requests": 0, "problems": []}
    dice = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "big"))
    suffix = ".ckpt.gz" if gz else ".pt"
    for tokens in lengths:
        count = max(1, -(-least_tokens // tokens))
        for block in range(blocks + 1):  # the first warms up
            prompts = torch.randint(8, vocabulary - 8, (1 if block == 0 else count, tokens), generator=dice)
            began = time.perf_counter()
            for at, ids in enumerate(prompts):
                sample = _sample(loaded, ids, boundaries, device)
                found["bytes"] += sample_files(Path(folder) / f"{at}{suffix}", sample, gz=gz)
            seconds = time.perf_counter() - began
            written = sorted(Path(folder).iterdir())
            if len(written) != len(prompts):
                found["problems"].append(f"{len(written)} files for {len(prompts)} prompts")
            for path in written:
                path.unlink()
            if block:
                found["requests"] += count
                found["cells"].setdefault(f"{tokens}x1", []).append(round(count * tokens / seconds, 2))
    return found


def _load(model: str, drawn: bool, device: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from hs_server.cpu_profile import torchvision_schemas

    if device == "cpu":
        torchvision_schemas.install()  # transformers meets a CPU build of torch here
    kind = torch.bfloat16 if device != "cpu" else torch.float32
    if drawn:
        with torch.device(device):
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model), dtype=kind).eval().model
    whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=kind)
    return whole.to(device).eval().model


def _sample(model: Any, ids: Any, boundaries: Sequence[int], device: str) -> dict[str, Any]:
    import torch

    with torch.inference_mode():
        out = model(ids[None].to(device), output_hidden_states=True, use_cache=False)
    aux = torch.cat([out.hidden_states[b] for b in boundaries], dim=-1)
    return {
        "input_ids": ids,
        "loss_mask": torch.ones_like(ids),
        "hidden_state": out.last_hidden_state.cpu(),
        "aux_hidden_state": aux.cpu(),
    }


def sample_files(path: Path, sample: dict[str, Any], *, gz: bool) -> int:
    """Write a sample as a trainer's own script does; returns the bytes."""
    import torch

    if gz:
        buffer = io.BytesIO()
        torch.save(sample, buffer)
        path.write_bytes(gzip.compress(buffer.getvalue(), _GZIP_LEVEL))
    else:
        torch.save(sample, path)
    return path.stat().st_size


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(dir=given.pop("folder")) as made:
        sys.stdout.write(json.dumps(run_loop(**given, folder=made)) + "\n")
