"""Which of SGLang's model files a server may leave unimported.

SGLang imports every file of `sglang/srt/models` at start, about 180 of them, of which a model needs one. Its variable
SGLANG_DISABLED_MODEL_ARCHS names files to skip. Here the files to keep are found from the `architectures` of the
model's config, by reading (not importing) which file exports them.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["find_models_folder", "unneeded_model_files"]

# Not models: imported by the others.
_ALWAYS_KEPT = frozenset({"__init__", "registry", "utils"})

_EXPORTS = re.compile(r"^EntryClass\s*(?::[^=]+)?=\s*(\[[^\]]*\]|\w+)", re.MULTILINE)


def find_models_folder() -> Path | None:
    """The `sglang/srt/models` folder of this interpreter, found without importing SGLang."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(next(iter(spec.submodule_search_locations))) / "srt" / "models"
    return folder if folder.is_dir() else None


def unneeded_model_files(architectures: Iterable[str], *, models_folder: Path) -> tuple[str, ...]:
    """Names (without .py) of the model files that export none of `architectures`.

    Empty when an architecture is exported by no file: then SGLang has its own way of finding it, and nothing may be
    switched off.
    """
    wanted = set(architectures)
    kept: set[str] = set()
    found: set[str] = set()
    names: list[str] = []
    for path in sorted(models_folder.glob("*.py")):
        names.append(path.stem)
        exports = _EXPORTS.search(path.read_text(encoding="utf-8", errors="replace"))
        here = wanted & set(re.findall(r"\w+", exports.group(1))) if exports else set()
        if here:
            kept.add(path.stem)
            found |= here
    if not wanted or found != wanted:
        return ()
    return tuple(name for name in names if name not in kept and name not in _ALWAYS_KEPT)
