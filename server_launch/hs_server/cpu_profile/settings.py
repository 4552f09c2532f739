"""The arguments and the environment that the `cpu` profile adds to a launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hs_server.cpu_profile.model_files import find_models_folder, unneeded_model_files
from hs_server.cpu_profile.plugin import ENV_CPU_PROFILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["CPU_ARGUMENTS", "ON_PYTHONPATH", "cpu_environment"]

ON_PYTHONPATH = Path(__file__).resolve().parent / "on_pythonpath"

# Flag and value (None: a switch), in the order they appear on the command line.
CPU_ARGUMENTS: tuple[tuple[str, str | None], ...] = (
    ("--device", "cpu"),
    ("--attention-backend", "torch_native"),
    ("--sampling-backend", "pytorch"),
    ("--disable-cuda-graph", None),
    ("--dtype", "float32"),
    # Without it the scheduler spins on a whole core while it has nothing to do.
    ("--sleep-on-idle", None),
    # Without it SGLang sizes the KV pool from all of the machine's free memory.
    ("--max-total-tokens", "16384"),
)

# Below this a model's matrices are so small that a second OpenMP thread costs more than it brings.
_THREADS_FROM_BYTES = 64 * 1024 * 1024


def cpu_environment(
    environment: Mapping[str, str], *, model_path: str, architectures: Sequence[str], ranks: int
) -> dict[str, str]:
    """What the profile sets; a variable that `environment` already has is kept, except those that make the profile."""
    added = {
        ENV_CPU_PROFILE: "1",
        # On a machine with GPUs SGLang would otherwise import CUDA kernels, for which there are stand-ins only.
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ON_PYTHONPATH), environment.get("PYTHONPATH", "")))),
    }
    defaults = {
        # Otherwise `--device cpu` looks for another engine's custom kernels.
        "SGLANG_USE_CPU_ENGINE": "1",
        # One entry a rank: SGLang refuses more ranks than NUMA nodes unless the binding is spelled out.
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % _usable_cpus()) for rank in range(max(ranks, 1))),
        # One function sits under torch.compile, which on a CPU would start a C++ compiler at the first request.
        "TORCHDYNAMO_DISABLE": "1",
        # Threads that spin while they wait make a busy machine ten times slower.
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": str(_threads_per_rank(model_path, ranks=ranks)),
    }
    if Path(model_path).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    models_folder = find_models_folder()
    if models_folder is not None and "SGLANG_EXTERNAL_MODEL_PACKAGE" not in environment:
        skipped = unneeded_model_files(architectures, models_folder=models_folder)
        if skipped:
            defaults["SGLANG_DISABLED_MODEL_ARCHS"] = ",".join(skipped)
    added.update({name: value for name, value in defaults.items() if name not in environment})
    return added


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0))


def _threads_per_rank(model_path: str, *, ranks: int) -> int:
    folder = Path(model_path)
    weights_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder.is_dir() else 0
    if weights_bytes < _THREADS_FROM_BYTES:
        return 1
    return max(1, _usable_cpus() // max(ranks, 1))
