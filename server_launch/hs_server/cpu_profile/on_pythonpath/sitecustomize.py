"""Runs first in every Python process of a server under the `cpu` profile: puts the import stand-ins in place.

The launcher puts this folder first on PYTHONPATH, so that spawned scheduler processes get the stand-ins as well. A
`sitecustomize` that this one hides is run afterwards, as if this one were not there.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _install_stand_ins() -> None:
    if os.environ.get("SGLANG_HS_CPU_PROFILE") != "1":
        return
    from hs_server.cpu_profile import torchvision_schemas, triton_mock

    torchvision_schemas.install()
    triton_mock.install()


def _run_hidden_sitecustomize() -> None:
    here = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_install_stand_ins()
_run_hidden_sitecustomize()
