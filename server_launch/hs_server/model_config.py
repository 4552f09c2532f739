"""The few facts about a model that the launcher reads from its config.json, where that lies on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hs_formats.errors import UsageError
from hs_server.arguments import flag_value

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ModelConfig", "read_model_config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """From config.json; the sizes are the language model's where the config nests it."""

    architectures: tuple[str, ...]
    num_layers: int
    hidden_size: int


def read_model_config(model_path: str, *, pass_through: Sequence[str] = ()) -> ModelConfig | None:
    """The config of `model_path`, or None where it names a model that is not a local folder.

    Raises:
        UsageError: `model_path` is a local path that does not hold a readable model config.
    """
    folder = Path(model_path)
    if not folder.exists():
        if model_path.startswith(("/", "./", "../", "~")) or model_path.count("/") > 1:
            raise UsageError(f"--model-path {model_path}: no such folder")
        return None
    file = folder / "config.json"
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"--model-path {model_path}: no config.json in it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--model-path {model_path}: config.json cannot be read: {error}") from None
    try:
        config.update(json.loads(flag_value(pass_through, "--json-model-override-args") or "{}"))
        text = config.get("text_config") or config.get("language_config") or config
        return ModelConfig(
            architectures=tuple(config.get("architectures") or text.get("architectures") or ()),
            num_layers=int(text["num_hidden_layers"]),
            hidden_size=int(text["hidden_size"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"--model-path {model_path}: config.json is not a language model's ({type(error).__name__}: {error})"
        ) from None
