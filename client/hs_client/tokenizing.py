"""Token ids and loss masks of text and chat rows, with the model's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hs_client.chat_options import ChatOptions
from hs_client.errors import NoTokenizer
from hs_client.lean_import import usable_torchvision, without_torch
from hs_client.loss_mask import Span, join, spans_of_tokens
from hs_client.messages import Message, trainable
from hs_client.row_error import RowError

__all__ = ["ChatTokenizer", "Tokens", "load_tokenizer"]


_SURROGATE = "the rendered conversation holds a lone surrogate, half of a character"
"""JSON inside of the row's JSON was unpacked."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids and the [start, stop) of those that are trained on."""

    ids: list[int]
    spans: list[Span]


class ChatTokenizer:
    """Turns rows into ids the way the server's own front end would, special tokens once. For one thread at a time.

    Args:
        tokenizer: a transformers tokenizer.
        chat: template, its arguments, the turns that are trained on.
    """

    def __init__(self, tokenizer: Any, chat: ChatOptions = ChatOptions()) -> None:  # noqa: B008 - it is frozen
        from hs_client.templates import ChatTemplate  # needs jinja2, which comes with the extra `tokenize`

        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, source=chat.template, arguments=chat.arguments)
        self._train_on = chat.train_on
        # A tokenizer that brings its own way from messages to ids is asked each time, and compared.
        self._own_way = _overrides(tokenizer, "apply_chat_template")

    def take_notes(self) -> set[str]:
        """What was odd about the rows since the last call, which were tokenised all the same."""
        notes, self._template.notes = self._template.notes, set()
        return notes

    def text(self, text: str) -> Tokens:
        """A text row, trained on as a whole; a text that begins with the BOS token gets no second one."""
        ids = self._raw_ids(text)
        return Tokens(ids, [(0, len(ids))])

    def prompt(self, prompt: str, response: str) -> Tokens:
        """A raw prompt and its raw response, trained on: the ids of one, then those of the other, as in generation."""
        ids = self._raw_ids(prompt)
        start = len(ids)
        ids += self._plain_ids(response)
        return Tokens(ids, [(start, len(ids))] if start < len(ids) else [])

    def chat(self, messages: Sequence[Message], template: Mapping[str, Any]) -> Tokens:
        """Ids of a conversation, `apply_chat_template(tokenize=True)`, and of these what the assistant wrote.

        A turn begins behind the generation prompt and includes the token that ends it. A token that straddles a border
        belongs to what it begins in.

        Raises:
            RowError: the chat template refuses the conversation or hides where a turn begins.
        """
        if not self._template:
            raise RowError("the tokenizer has no chat template: give text or input_ids instead of messages")
        wanted = [at for at, message in enumerate(messages) if trainable(message)]
        if self._train_on == "last":
            wanted = wanted[-1:]
        adapted = self._template.adapt(messages, template)
        full = self._template.render(adapted, template)
        if not _encodable(full):
            raise RowError(_SURROGATE)
        turns = self._template.turns(adapted, wanted, template, full)
        if getattr(self._tokenizer, "is_fast", False):
            encoded = self._tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
            ids = list(encoded["input_ids"])
            spans = spans_of_tokens(encoded["offset_mapping"], turns)
        else:
            ids = self._plain_ids(full)
            spans = self._spans_by_pieces(full, turns, ids)
        if self._own_way and self._template.ids(adapted, template) != ids:
            raise RowError("the chat template's text and tokens disagree: give input_ids and loss_mask")
        return Tokens(ids, spans)

    def opening(self, messages: Sequence[Message], template: Mapping[str, Any]) -> list[int]:
        """Ids of a conversation up to where the assistant is to answer: ``add_generation_prompt=True``.

        Raises:
            RowError: the chat template refuses the conversation.
        """
        if not self._template:
            raise RowError("the tokenizer has no chat template: give text or input_ids instead of messages")
        adapted = self._template.adapt(messages, template)
        return self._plain_ids(self._rendered(adapted, template))

    def between(self, messages: Sequence[Message], answered: Sequence[int], template: Mapping[str, Any]) -> list[int]:
        """Ids of what the template writes from the last of the `answered` turns to where the next answer begins.

        They begin with what ends the turn. The texts of the answered turns do not matter.

        Raises:
            RowError: the chat template refuses the conversation, or hides where the turn ends.
        """
        from hs_client.templates import WORD

        word = WORD
        while any(word in str(message.get("content")) for message in messages):
            word += "x"
        plain = [
            {"role": "assistant", "content": word} if at in answered else message for at, message in enumerate(messages)
        ]
        text = self._rendered(self._template.adapt(plain, template), template)
        head, found, tail = text.rpartition(word)
        if not found:
            raise RowError(f"the chat template hides where turn {answered[-1]} ends: its answer cannot be followed up")
        before = self._template.adapt(plain[: answered[-1]], template)
        if head != self._rendered(before, template):
            self._template.notes.add(
                "the chat template writes earlier answers otherwise than they were generated (without their reasoning,"
                " say): records have them as they were"
            )
        return self._ids_behind(word, tail)

    def ends_with(self, ids: Sequence[int], token: int) -> int:
        """Number of `ids` up to and with `token`, where nothing but white space stands before it; else 0."""
        if token not in ids:
            return 0
        at = ids.index(token)
        return 0 if at and self._tokenizer.decode(ids[:at]).strip() else at + 1

    def _rendered(self, adapted: Sequence[Message], template: Mapping[str, Any]) -> str:
        text = self._template.render(adapted, template, prompt=True)
        if not _encodable(text):
            raise RowError(_SURROGATE)
        return text

    def _ids_behind(self, word: str, tail: str) -> list[int]:
        """Ids of `tail` as they are behind a word, where a token begins with it; some tokenizers put a space before."""
        if getattr(self._tokenizer, "is_fast", False):
            encoded = self._tokenizer(word + tail, add_special_tokens=False, return_offsets_mapping=True)
            starts = [start for start, _ in encoded["offset_mapping"]]
            if len(word) in starts:
                return list(encoded["input_ids"][starts.index(len(word)) :])
        return self._plain_ids(tail)

    def _raw_ids(self, text: str) -> list[int]:
        bos = self._tokenizer.bos_token
        special = not (bos and text.startswith(bos))
        return list(self._tokenizer(text, add_special_tokens=special)["input_ids"])

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _spans_by_pieces(self, full: str, turns: Sequence[Span], ids: list[int]) -> list[Span]:
        """Token spans from a tokenizer without offsets: the pieces between borders must give the very same ids."""
        found: list[Span] = []
        together: list[int] = []
        at = 0
        for start, stop in turns:
            together += self._plain_ids(full[at:start]) if at < start else []
            first = len(together)
            together += self._plain_ids(full[start:stop])
            found.append((first, len(together)))
            at = stop
        together += self._plain_ids(full[at:]) if at < len(full) else []
        if together != ids:
            raise RowError(
                "a token straddles the border of a turn, and this tokenizer does not say where: give input_ids"
            )
        return join([span for span in found if span[0] < span[1]])


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _overrides(tokenizer: Any, method: str) -> bool:
    """Some class of the tokenizer's own, outside of transformers, brings `method`."""
    owner = next((cls for cls in type(tokenizer).__mro__ if method in vars(cls)), None)
    return owner is not None and not owner.__module__.startswith("transformers.tokenization_")


def load_tokenizer(
    path: str,
    *,
    trust_remote_code: bool = False,
    chat: ChatOptions = ChatOptions(),  # noqa: B008 - it is frozen
    lean: bool = False,
) -> ChatTokenizer:
    """The tokenizer at `path`, a folder or a name that transformers knows.

    `lean`: this process will need transformers for nothing else, so torch is left out. A tokenizer that brings its own
    code may want torch, and gets it.

    Raises:
        NoTokenizer: transformers is missing, or it cannot load the tokenizer.
    """
    with without_torch() if lean and not trust_remote_code else usable_torchvision():
        try:
            import jinja2  # noqa: F401 - transformers does without until there is a template
            from transformers import AutoTokenizer
            from transformers.utils import logging
        except ImportError as error:
            raise NoTokenizer(path=path, reason=f"{error}; pip install 'hs-extract[tokenize]'") from None
        logging.set_verbosity_error()
        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        except Exception as error:  # noqa: BLE001 - what a tokenizer's own code raises is not ours to list
            reason = " ".join(str(error).split())[:300]
            if path.startswith(("/", ".", "~")) and not Path(path).exists():
                reason = "there is no such folder"  # transformers takes it for a name on the hub and speaks of that
            raise NoTokenizer(path=path, reason=reason or type(error).__name__) from None
    return ChatTokenizer(tokenizer, chat)
