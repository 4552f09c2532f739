"""What tells one model from another: its configuration and samples of its weights.

Fine-tuned and retrained models share their ``config.json`` and the sizes of all files, and states of two of them must
not meet in one dataset. Reading all weights would take minutes, so a few kilobytes of each weight file stand for it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

__all__ = ["model_hash"]

_VOLATILE_CONFIG = ("_name_or_path", "transformers_version")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_SAMPLE_BYTES = 16384
_SAMPLE_EIGHTHS = (1, 3, 5, 7)


def model_hash(config: Any, model_path: str) -> str:
    """Names the model by 32 hex digits.

    Args:
        config: the loaded configuration, for a model that is no local folder; its commit stands for the weights then.
        model_path: as the server was given it.

    Raises:
        OSError: a file of the model cannot be read.
    """
    folder = Path(model_path)
    local = folder / "config.json"
    digest = hashlib.sha256()
    if local.is_file():
        digest.update(_canonical(json.loads(local.read_bytes())))
        for path in sorted(folder.iterdir()):
            if path.suffix in _WEIGHT_SUFFIXES and path.is_file():
                _add_weights(digest, path)
    else:
        digest.update(_canonical(config.to_dict()))
        digest.update(str(getattr(config, "_commit_hash", None)).encode())
    return digest.hexdigest()[:32]


def _canonical(values: dict[str, Any]) -> bytes:
    kept = {key: value for key, value in values.items() if key not in _VOLATILE_CONFIG}
    return json.dumps(kept, sort_keys=True, separators=(",", ":"), default=str).encode()


def _add_weights(digest: Any, path: Path) -> None:
    size = path.stat().st_size
    digest.update(f"\n{path.name} {size}\n".encode())
    with path.open("rb") as file:
        for eighth in _SAMPLE_EIGHTHS:
            file.seek(size * eighth // 8)
            digest.update(file.read(_SAMPLE_BYTES))
