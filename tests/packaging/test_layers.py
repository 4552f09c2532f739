"""Who may import whom: the three programs meet in `hs_formats` and in files, never in each other's code."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"hs_formats": "formats", "hs_server": "server_launch", "hs_mover": "mover", "hs_client": "client"}
FOREIGN = {
    "hs_formats": {"backports", "compression", "msgspec", "numpy", "obstore", "torch", "xxhash", "zstandard"},
    "hs_server": {"numpy", "sglang", "torch"},
    "hs_mover": {"click", "msgspec", "numpy", "prometheus_client", "tqdm", "watchdog", "xxhash"},
    "hs_client": {
        *("anyio", "click", "httpx", "httpx2", "msgspec", "numpy", "tqdm", "uvloop", "xxhash", "zstandard"),
        *("huggingface_hub", "jinja2", "pyarrow", "ray", "safetensors", "torch", "torchvision", "transformers"),
    },
}
ONLY_IN = {
    ("hs_formats", "torch"): ("collate.py", "reader.py", "streaming.py"),
    ("hs_formats", "obstore"): ("objectstore/",),
    ("hs_client", "ray"): ("cluster/",),
    ("hs_server", "sglang"): ("capture/", "cpu_profile/"),
    ("hs_server", "numpy"): ("doctor/",),
}
"""Where packages that are large, or not installed everywhere, may be imported at all."""


def imports(package: str) -> set[tuple[str, str]]:
    """Files below the package with the modules that they import anywhere, but for the standard library's."""
    folder = ROOT / FOLDERS[package] / package
    found: set[tuple[str, str]] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [name.name for name in names]
                case ast.ImportFrom(module=str(module), level=0):
                    modules = [module]
                case _:
                    continue
            found |= {(str(path.relative_to(folder)), module) for module in modules}
    return {(file, module) for file, module in found if module.partition(".")[0] not in sys.stdlib_module_names}


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_imports_what_it_may(package: str) -> None:
    tops = {(file, module.partition(".")[0]) for file, module in imports(package)}
    allowed = FOREIGN[package] | {package, "hs_formats"}
    assert sorted((file, top) for file, top in tops if top not in allowed) == [], "docs/architecture.md says who may"
    for (where, top), places in ONLY_IN.items():
        if where == package:
            assert sorted(file for file, name in tops if name == top and not file.startswith(places)) == []
