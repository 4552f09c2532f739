"""A model that never ends an answer by itself, so that each answer has the length that was asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["WITHOUT_TOKENIZER", "endless"]

WITHOUT_TOKENIZER = "--skip-tokenizer-init"
"""Argument of SGLang: it would take the tokens that end an answer from the tokenizer, too."""

_GENERATION = "generation_config.json"


def endless(model: Path, folder: Path) -> Path:
    """`model` in `folder` with links to its files, and without tokens that end an answer.

    Those of a tokenizer are left out by `WITHOUT_TOKENIZER`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in model.iterdir():
        if path.name not in ("config.json", _GENERATION) and not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())
    config: dict[str, Any] = json.loads((model / "config.json").read_bytes())
    for part in (config, config.get("text_config")):
        if part is not None:
            part["eos_token_id"] = None  # missing, it would be the class's default
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    return folder
