"""This checkout as an installed package: import paths, and the metadata by which SGLang finds plugins.

Plugins are found by entry point, and an entry point needs a ``.dist-info`` folder on the path; two small text files
make one. Servers started by a benchmark get it through PYTHONPATH.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = [
    "ROOT",
    "make_importable",
    "program",
    "program_environment",
    "server_path",
    "use_test_support",
    "write_dist_info",
]

ROOT = Path(__file__).resolve().parents[1]

_FOLDERS = ("formats", "server_launch", "mover", "client")


def _folders() -> list[str]:
    return [str(ROOT / name) for name in _FOLDERS]


def make_importable() -> None:
    """Let ``hs_formats`` and its siblings be imported from the checkout where hs-extract is not installed."""
    if importlib.util.find_spec("hs_formats") is None:
        sys.path[:0] = _folders()


def program(package: str) -> list[str]:
    """The command of our program in `package`, such as ``hs_mover``, installed or not; see `program_environment`."""
    return [sys.executable, "-c", f"from {package}.cli import main; main()"]


def program_environment() -> dict[str, str]:
    """The environment with this checkout first on the import path."""
    given = filter(None, [os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *_folders(), *given])}


def use_test_support() -> None:
    """Let what the tests share be imported: the tiny models, the real chain, the independent checker."""
    folder = str(ROOT / "tests" / "support")
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _installed() -> bool:
    try:
        importlib.metadata.distribution("hs-extract")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def server_path(folder: Path, environment: Mapping[str, str] = os.environ) -> str:
    """PYTHONPATH for servers: the checkout, and in `folder` the metadata of what is not installed."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = [str(folder), str(ROOT)]
    if not _installed():
        write_dist_info(folder, name="hs-extract", version=project["version"], points=project["entry-points"])
        entries += _folders()
    plugins = {
        "hs_bench_weights": "benchmarks.realistic_weights:install",
        "hs_bench_witness": "benchmarks.witness:install",
    }
    write_dist_info(folder, name="hs-extract-benchmarks", version="0", points={"sglang.srt.plugins": plugins})
    return os.pathsep.join([*entries, *filter(None, [environment.get("PYTHONPATH", "")])])


def write_dist_info(folder: Path, *, name: str, version: str, points: Mapping[str, Mapping[str, str]]) -> Path:
    """The smallest ``.dist-info`` that ``importlib.metadata`` reads; `points` maps group to name to target."""
    made = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    made.mkdir(parents=True, exist_ok=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    lines: list[str] = []
    for group, targets in points.items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in targets.items()), ""]
    (made / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
    return made
