"""Token ids and loss masks of text and chat rows, with the model's own tokenizer and chat template."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hs_client.errors import NoTokenizer
from hs_client.rows import RowError

__all__ = ["ChatTokenizer", "load_tokenizer"]

_SENTINEL = "hs7e4dsentinel"
"""Stands in for the last turn's content to find where it begins; no template reacts to it."""


class ChatTokenizer:
    """Turns rows into ids the way the server's own front end would, special tokens once.

    Args:
        tokenizer: a transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def text_ids(self, text: str) -> list[int]:
        """Ids of a text row; a text that already begins with the BOS token gets no second one."""
        bos = self._tokenizer.bos_token
        special = not (bos and text.startswith(bos))
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any]) -> tuple[list[int], int]:
        """Ids of a conversation and the index of the first token of its last assistant turn's content.

        The turn runs to the end of the rendering, the end-of-turn token included. A token that straddles the border
        belongs to what comes before it.

        Raises:
            RowError: the chat template refuses the conversation or hides where its last turn begins.
        """
        if not self._tokenizer.chat_template:
            raise RowError("the tokenizer has no chat template: give text or input_ids instead of messages")
        full = self._render(messages, template)
        border = self._border(messages, template, full)
        ids = list(self._apply(messages, template, tokenize=True, return_dict=False))
        return ids, self._first_token(full, border, ids)

    def _apply(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any], **options: Any) -> Any:
        try:
            return self._tokenizer.apply_chat_template([dict(m) for m in messages], **template, **options)
        except Exception as error:  # noqa: BLE001 - a template is somebody's program and may raise anything
            raise RowError(f"the chat template refuses the conversation: {error}"[:300]) from None

    def _render(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any], **options: Any) -> str:
        return str(self._apply(messages, template, tokenize=False, **options))

    def _border(self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, Any], full: str) -> int:
        """Character of `full` at which the content of the last turn begins."""
        if len(messages) > 1:
            with contextlib.suppress(RowError):
                prompt = self._render(messages[:-1], template, add_generation_prompt=True)
                if full.startswith(prompt):
                    return len(prompt)
        # The prompt may open a think block that a turn without one does not have: look for the content itself.
        marked = self._render([*messages[:-1], {**messages[-1], "content": _SENTINEL}], template)
        head, found, _ = marked.partition(_SENTINEL)
        if found and full.startswith(head):
            return len(head)
        raise RowError(
            "the chat template renders the last turn so that its beginning cannot be told: give input_ids and loss_mask"
        )

    def _first_token(self, full: str, border: int, ids: list[int]) -> int:
        head = list(self._tokenizer(full[:border], add_special_tokens=False)["input_ids"])
        if ids[: len(head)] == head:
            return len(head)
        if not getattr(self._tokenizer, "is_fast", False):
            return sum(1 for _ in _common(ids, head))
        encoded = self._tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
        if list(encoded["input_ids"]) != ids:
            raise RowError("the chat template's text and tokens disagree: give input_ids and loss_mask")
        return next((at for at, (start, _) in enumerate(encoded["offset_mapping"]) if start >= border), len(ids))


def _common(a: Sequence[int], b: Sequence[int]) -> Iterator[int]:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> ChatTokenizer:
    """The tokenizer at `path`, a folder or a name that transformers knows.

    Raises:
        NoTokenizer: transformers is missing, or it cannot load the tokenizer.
    """
    with _usable_torchvision():
        try:
            from transformers import AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise NoTokenizer(path=path, reason=f"{error}; pip install 'hs-extract[tokenize]'") from None
        logging.set_verbosity_error()
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        except Exception as error:  # noqa: BLE001 - what a tokenizer's own code raises is not ours to list
            reason = " ".join(str(error).split())[:300]
            raise NoTokenizer(path=path, reason=reason or type(error).__name__) from None
    return ChatTokenizer(tokenizer)


@contextlib.contextmanager
def _usable_torchvision() -> Iterator[None]:
    """Hide a torchvision that does not fit the installed torch: transformers imports it, but no tokenizer needs it."""
    hidden = False
    if "torchvision" not in sys.modules and importlib.util.find_spec("torchvision") is not None:
        try:
            import torchvision  # noqa: F401
        except (ImportError, OSError, RuntimeError, AttributeError):
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            sys.modules["torchvision"] = None  # type: ignore[assignment]
            hidden = True
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torchvision"]
