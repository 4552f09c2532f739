"""How chat rows become tokens, as the command line says it: template, its arguments, which turns are trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hs_client.lines import shown
from hs_client.rows import TEMPLATE_TAKEN
from hs_formats.dataset import DatasetInfo
from hs_formats.errors import UsageError

__all__ = ["ChatOptions", "TrainOn", "parse_arguments", "read_template"]

TrainOn = Literal["all", "last"]

_MAX_TEMPLATE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Chat settings of a run.

    Attributes:
        template: source of the chat template, empty for the tokenizer's own.
        arguments: keyword arguments of the template for every row; a row's own win.
        train_on: the loss mask covers every turn of the assistant, or the last one alone.
    """

    template: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    train_on: TrainOn = "all"

    def describe(self, info: DatasetInfo) -> DatasetInfo:
        """`info` with these settings: records made with others do not belong into one dataset."""
        own = hashlib.sha256(self.template.encode()).hexdigest() if self.template else info.template_hash
        arguments = json.dumps(self.arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return replace(info, template_hash=own, template_arguments=arguments, train_on=self.train_on)


def parse_arguments(text: str) -> dict[str, Any]:
    """``--chat-template-kwargs``: a JSON object.

    Raises:
        UsageError: it is none, or it holds what is not the user's to give.
    """
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--chat-template-kwargs is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError("--chat-template-kwargs must be a JSON object such as '{\"enable_thinking\": false}'")
    taken = TEMPLATE_TAKEN & set(found)
    if taken:
        raise UsageError(f"--chat-template-kwargs may not hold {', '.join(sorted(taken))}")
    return found


def read_template(path: Path | None) -> str:
    """The source of ``--chat-template``; empty without it.

    Raises:
        UsageError: the file cannot be read, or is no Jinja template.
    """
    if path is None:
        return ""
    try:
        data = path.read_bytes()[: _MAX_TEMPLATE_BYTES + 1]
        source = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"--chat-template {shown(path)}: {reason}") from None
    if len(data) > _MAX_TEMPLATE_BYTES or "{" not in source:
        raise UsageError(f"--chat-template {shown(path)}: not a Jinja template")
    return source
