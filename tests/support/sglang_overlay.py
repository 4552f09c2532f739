"""A private view of an installed SGLang in which one model file may be changed, for tests that patch it.

Folders on the way to the file are made, all else in them is a link; so nothing of the installation is written to, and
nothing but that file is compiled twice.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

__all__ = ["file_hashes", "overlay_sglang"]

_WAY = ("sglang", "srt", "models")


def overlay_sglang(site: Path, target: Path) -> Path:
    """Show the SGLang in the folder `site` (its site-packages) in `target`, for PYTHONPATH; the package there."""
    source, here = site, target
    for name in _WAY:
        source, here = source / name, here / name
        here.mkdir(parents=True)
        for entry in source.iterdir():
            if entry.name not in ("__pycache__", "deepseek_v2.py", *_WAY):
                (here / entry.name).symlink_to(entry)
    shutil.copyfile(source / "deepseek_v2.py", here / "deepseek_v2.py")
    for metadata in site.glob("sglang-*.dist-info"):
        (target / metadata.name).symlink_to(metadata)
    return target / "sglang"


def file_hashes(package: Path) -> dict[str, str]:
    """SHA-256 of every file of `package` that was not put there by compiling, by its path."""
    return {
        str(path.relative_to(package)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
