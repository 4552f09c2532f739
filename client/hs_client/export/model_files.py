"""What an export needs of the target model: its config, and for speculators the weight of its final norm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hs_client.export.errors import NoModel
from hs_client.hub import model_file
from hs_formats.jsonl import UNREADABLE

if TYPE_CHECKING:
    import torch

__all__ = ["ModelFiles", "norm_key"]

_NORM = "model.norm.weight"
_NORM_ALIASES = (_NORM, "language_model.norm.weight")


def norm_key(keys: list[str]) -> str | None:
    """The final norm's weight among a checkpoint's tensor names: by its usual name, else by the shortest that ends so.

    speculators looks it up in the same way, so that both take the same tensor.
    """
    for name in _NORM_ALIASES:
        found = [key for key in keys if key == name or key.endswith("." + name)]
        if found:
            return min(found, key=len)
    return None


class ModelFiles:
    """A model's folder, or its name in the local hub cache."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._config: Mapping[str, Any] | None = None

    @property
    def config(self) -> Mapping[str, Any]:
        """config.json.

        Raises:
            NoModel: there is none, or it cannot be read.
        """
        if self._config is None:
            self._config = self._json("config.json", need="config.json")
            if self._config is None:
                raise NoModel(need="config.json", path=self.path, reason="holds none")
        return self._config

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The language model's part of the config.

        Raises:
            NoModel: as `config`.
        """
        for key in ("text_config", "language_config"):
            if isinstance(nested := self.config.get(key), dict):
                return nested
        return self.config

    @property
    def model_type(self) -> str:
        """``model_type`` of the language model; empty where the config names none."""
        return str(self.text_config.get("model_type") or self.config.get("model_type") or "")

    @property
    def architecture(self) -> str:
        """Name of the class that serves the model; empty where the config names none."""
        named = self.config.get("architectures") or self.text_config.get("architectures") or [""]
        return str(named[0])

    @property
    def vocab_size(self) -> int:
        """Number of target tokens.

        Raises:
            NoModel: the config does not say.
        """
        size = self.text_config.get("vocab_size") or self.config.get("vocab_size")
        if not isinstance(size, int):
            raise NoModel(need="vocab_size in config.json", path=self.path, reason="does not say")
        return size

    @property
    def norm_eps(self) -> float:
        """Epsilon of the final norm.

        Raises:
            NoModel: the config does not say.
        """
        for key in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"):
            if isinstance(eps := self.text_config.get(key), int | float):
                return float(eps)
        raise NoModel(need="rms_norm_eps in config.json", path=self.path, reason="does not say")

    def final_norm(self) -> tuple[str, torch.Tensor]:
        """Name and values [H] of the final norm's weight, in the checkpoint's dtype.

        Raises:
            NoModel: the checkpoint is not here as safetensors, or has no such tensor.
        """
        from safetensors import safe_open

        need = "the weight of the final norm"
        index = self._json("model.safetensors.index.json", need=need)
        files: Mapping[str, str] | None = None
        if index is not None:
            files = index.get("weight_map", {})
        name = "model.safetensors"
        if files is not None:
            key = norm_key(list(files))
            if key is None:
                raise NoModel(need=need, path=self.path, reason=f"has no tensor {_NORM}")
            name = files[key]
        file = model_file(self.path, name)
        if file is None:
            raise NoModel(need=need, path=self.path, reason=f"holds no {name}")
        try:
            with safe_open(str(file), framework="pt") as tensors:
                key = norm_key(list(tensors.keys()))
                if key is None:
                    raise NoModel(need=need, path=self.path, reason=f"has no tensor {_NORM}")
                return key, tensors.get_tensor(key)
        except NoModel:
            raise
        except Exception as error:  # noqa: BLE001  # safetensors' own class is not a stable name
            raise NoModel(need=need, path=self.path, reason=f"cannot be read: {error}") from None

    def _json(self, name: str, *, need: str) -> Mapping[str, Any] | None:
        file: Path | None = model_file(self.path, name)
        if file is None:
            return None
        try:
            return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
        except (OSError, *UNREADABLE) as error:
            raise NoModel(need=need, path=self.path, reason=f"has a {name} that cannot be read: {error}") from None
