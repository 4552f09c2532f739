"""What the records of a dataset must share: hashes of tokenizer and chat template, the vocabulary, `dataset.json`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from hs_client.hub import model_file
from hs_formats.control import Marker
from hs_formats.dataset import DatasetInfo
from hs_formats.jsonl import UNREADABLE

__all__ = ["TokenizerFiles", "dataset_info", "read_vocab_size", "tokenizer_files"]

_FILES = (
    "added_tokens.json",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


class TokenizerFiles:
    """Files of a tokenizer by name, the config decoded."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = dict(files)
        self._config: dict[str, Any] = {}
        with contextlib.suppress(*UNREADABLE):
            self._config = msgspec.json.decode(self._files.pop("tokenizer_config.json", b"{}"), type=dict[str, Any])

    def tokenizer_hash(self) -> str:
        """sha256 over everything but the chat template; empty where no file is known."""
        files = {name: data for name, data in self._files.items() if name not in _TEMPLATES}
        config = {key: value for key, value in self._config.items() if key != "chat_template"}
        if not files and not config:
            return ""
        files["tokenizer_config.json"] = msgspec.json.encode(config, order="deterministic")
        digest = hashlib.sha256()
        for name, data in sorted(files.items()):
            digest.update(b"%s %d\n" % (name.encode(), len(data)))
            digest.update(data)
        return digest.hexdigest()

    def template_hash(self) -> str:
        """sha256 of the chat template; empty where there is none."""
        template: bytes | None = self._files.get("chat_template.jinja")
        if template is None and "chat_template.json" in self._files:
            template = self._files["chat_template.json"]
        if template is None and self._config.get("chat_template"):
            template = msgspec.json.encode(self._config["chat_template"], order="deterministic")
        return hashlib.sha256(template).hexdigest() if template else ""


def tokenizer_files(path: str) -> TokenizerFiles:
    """The files of the tokenizer at `path`, a folder or the name of a repository in the local hub cache."""
    found: dict[str, bytes] = {}
    names = {*_FILES, *_TEMPLATES}
    folder = Path(path)
    if folder.is_dir():
        names |= {file.name for file in folder.glob("tokenization_*.py")}
    for name in names:
        file = model_file(path, name)
        if file is not None and file.is_file():
            found[name] = file.read_bytes()
    return TokenizerFiles(found)


def read_vocab_size(path: str) -> int:
    """``vocab_size`` of the model's config, 0 where it cannot be found."""
    file = model_file(path, "config.json")
    try:
        config = msgspec.json.decode(file.read_bytes(), type=dict[str, Any]) if file is not None else {}
    except (OSError, *UNREADABLE):
        return 0
    nested = config.get("text_config")
    size = config.get("vocab_size") or (nested.get("vocab_size") if isinstance(nested, dict) else None)
    return size if isinstance(size, int) else 0


def dataset_info(marker: Marker, tokenizer: str) -> DatasetInfo:
    """The description of a dataset whose records come from this server and tokenizer."""
    files = tokenizer_files(tokenizer)
    return DatasetInfo(
        model=marker.model,
        config_hash=marker.config_hash,
        num_layers=marker.num_layers,
        boundaries=list(marker.boundaries),
        dtype=marker.dtype,
        hidden_size=marker.hidden_size,
        tokenizer=tokenizer,
        tokenizer_hash=files.tokenizer_hash(),
        template_hash=files.template_hash(),
        capture={"writers": marker.writers, "mode": marker.capture_mode, "sglang": marker.sglang_version},
    )
