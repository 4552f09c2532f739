"""Where a file of a model lies on this machine: in the folder that was named, or in the local hub cache."""

from __future__ import annotations

from pathlib import Path

__all__ = ["model_file"]


def model_file(model: str, name: str) -> Path | None:
    """The file `name` of `model`, a folder or the name of a repository in the local hub cache; None without it."""
    folder = Path(model)
    if folder.is_dir():
        file = folder / name
        return file if file.is_file() else None
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, name)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None
