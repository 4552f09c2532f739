"""A model's chat template: what it renders, in which form it wants tool calls and reasoning, what the model wrote.

A template is a program of somebody's. What it does with null contents, with arguments of tool calls and with reasoning
differs from model to model, and most of them say nothing when they are given the other form: they write ``None``, text
inside text, or leave the call out. So each is tried once with a made-up conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hs_client.loss_mask import Span, join, trim, turn_start
from hs_client.message_marks import MarkedTemplate, Marks
from hs_client.messages import REASONING, Message
from hs_client.row_error import RowError

__all__ = ["WORD", "ChatTemplate", "Form"]

WORD = "hs7e4d"
"""Stands in for what is looked for; no template reacts to it. Nine characters with a suffix: Mistral's count ids."""

_HIDDEN = "the chat template renders turn {at} so that its borders cannot be told: give input_ids and loss_mask"


@dataclass(frozen=True, slots=True)
class Form:
    """What a template is to be given.

    Attributes:
        calls: it renders tool calls at all.
        arguments_as_text: arguments of tool calls as JSON text, else as an object.
        null_content: the content beside tool calls as null, else as empty text.
        reasoning: name under which it looks for reasoning; empty where it renders none.
        parts: contents as a list with one part, as templates of models that take images may want them.
    """

    calls: bool = True
    arguments_as_text: bool = False
    null_content: bool = False
    reasoning: str = ""
    parts: bool = False


class ChatTemplate:
    """The chat template of a transformers tokenizer.

    Args:
        tokenizer: a transformers tokenizer.
        source: a template to use instead of the tokenizer's own.
        arguments: keyword arguments for every rendering; a row's own win.
    """

    def __init__(self, tokenizer: Any, *, source: str = "", arguments: Mapping[str, Any] | None = None) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._arguments = dict(arguments or {})
        self._forms: dict[str, Form] = {}
        self._marked: dict[str, MarkedTemplate | None] = {}
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        special = {str(token) for token in added if getattr(token, "special", False)}
        self._special = sorted(special | set(tokenizer.all_special_tokens))
        self.notes: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._source or self._tokenizer.chat_template)

    def text_of(self, template: Mapping[str, Any]) -> str:
        """The source that renders a row with these arguments; empty where there is none.

        Raises:
            RowError: the tokenizer has several and none of them for this row.
        """
        if self._source:
            return self._source
        if "chat_template" in template:
            return str(template["chat_template"])
        try:
            return str(self._tokenizer.get_chat_template(None, template.get("tools")))
        except ValueError as error:
            raise RowError(f"the chat template refuses the conversation: {error}"[:300]) from None

    def render(self, messages: Sequence[Message], template: Mapping[str, Any], *, prompt: bool = False) -> str:
        """The conversation as text, with the generation prompt if asked to.

        Raises:
            RowError: the template refuses it.
        """
        own = {"chat_template": self._source} if self._source else {}
        arguments = {**self._arguments, **template, **own, "add_generation_prompt": prompt}
        try:
            return str(self._tokenizer.apply_chat_template(list(messages), tokenize=False, **arguments))
        except Exception as error:  # noqa: BLE001 - a template is somebody's program and may raise anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise RowError(f"the chat template refuses the conversation: {why}"[:300]) from None

    def ids(self, messages: Sequence[Message], template: Mapping[str, Any]) -> list[int]:
        """`apply_chat_template(tokenize=True)` of what `adapt` gives."""
        own = {"chat_template": self._source} if self._source else {}
        arguments = {**self._arguments, **template, **own, "tokenize": True, "return_dict": False}
        return list(self._tokenizer.apply_chat_template(list(messages), **arguments))

    # -- forms

    def form(self, template: Mapping[str, Any]) -> Form:
        """In which form the template that renders this row wants its messages."""
        source = self.text_of(template)
        found = self._forms.get(source)
        if found is None:
            own = {"chat_template": template["chat_template"]} if "chat_template" in template else {}
            found = self._forms[source] = self._try_forms(own)
        return found

    def _try_forms(self, template: Mapping[str, Any]) -> Form:
        if f"{WORD}said" not in self._attempt({"role": "assistant", "content": f"{WORD}said"}, template):
            asked, said = (_in_parts({"role": role, "content": WORD}) for role in ("user", "assistant"))
            if self._try([asked, said], template).count(WORD) == 2:
                return Form(calls=False, parts=True)
        reasoning = ""
        for name in REASONING:
            turn = {"role": "assistant", "content": f"{WORD}said", name: f"{WORD}thought"}
            if f"{WORD}thought" in self._attempt(turn, template):
                reasoning = name
                break
        tool = {"type": "function", "function": {"name": "other", "description": "", "parameters": {}}}
        for tools in ({}, {"tools": [tool]}):
            for as_text in (False, True):
                for null in (False, True):
                    text = self._attempt(_probe_call(as_text=as_text, null=null), {**template, **tools})
                    if _renders_call(text):
                        return Form(True, as_text, null, reasoning)
        return Form(calls=False, reasoning=reasoning)

    def _attempt(self, turn: Message, template: Mapping[str, Any]) -> str:
        try:
            return self.render([{"role": "user", "content": f"{WORD}asked"}, turn], template)
        except RowError:
            return ""

    def adapt(self, messages: Sequence[Message], template: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Checked messages in the form that the template wants.

        Raises:
            RowError: tool calls that the template would leave out, or arguments that are no JSON object.
        """
        form = self.form(template)
        if not form.reasoning and any("reasoning_content" in m for m in messages):
            self.notes.add("reasoning is left out: the chat template renders none")
        return list(self._adapted(messages, form))

    def _adapted(self, messages: Sequence[Message], form: Form) -> Iterator[dict[str, Any]]:
        for at, message in enumerate(messages):
            out = dict(message)
            thought = out.pop("reasoning_content", None)
            if thought is not None and form.reasoning:
                out[form.reasoning] = thought
            if "tool_calls" in out:
                if not form.calls:
                    raise RowError(f"message {at} calls tools, and the chat template renders no tool calls")
                out["tool_calls"] = [_call_in_form(at, call, form) for call in out["tool_calls"]]
            if out["content"] is None and not (form.null_content and "tool_calls" in out):
                out["content"] = ""
            yield _in_parts(out) if form.parts else out

    # -- borders

    def turns(
        self, messages: Sequence[Message], wanted: Sequence[int], template: Mapping[str, Any], full: str
    ) -> list[Span]:
        """[start, stop) in `full`, the rendering of `messages`, of what the model wrote in the turns `wanted`.

        Raises:
            RowError: the template hides where a turn begins or ends.
        """
        for at, message in enumerate(messages):
            if _left_out(message, full):
                if at in wanted and "tool_calls" not in message:
                    raise RowError(f"the chat template leaves out what message {at} says")
                self.notes.add(
                    f"the chat template leaves out what a message of role {str(message['role'])[:40]!r} says"
                )
        marks = self._marks(messages, template, full)
        if marks is not None and marks.generations:
            return self._generation_blocks(marks, wanted)
        prompts: dict[str, str | None] = {}
        plain = None if marks is None else self._marks(_plainly(messages, wanted), template, None)
        found: list[Span] = []
        for at in wanted:
            chunk = None if marks is None else marks.chunk(at)
            there = None if plain is None else plain.chunk(at)
            prompt = self._prompt(messages, at, template, prompts)
            if (
                marks is None
                or plain is None
                or not chunk
                or not there
                or prompt is None
                or _swallowed(marks, messages, at)
            ):
                found.append(self._by_prefix(messages, at, template, full))
            else:
                start, stop = chunk
                if stop == len(full) and marks.loop_end is not None:
                    stop = self._end_of_last(full, start, marks.loop_end)
                found.append((start + turn_start(full[start:stop], prompt, plain.text[slice(*there)], WORD), stop))
        return join([span for span in (trim(full, span, self._special) for span in found) if span[0] < span[1]])

    def _end_of_last(self, full: str, start: int, loop_end: int) -> int:
        """What a template writes behind its loop belongs to the last turn only where that has not ended before."""
        return loop_end if full[start:loop_end].rstrip().endswith(tuple(self._special)) else len(full)

    def _marks(
        self,
        messages: Sequence[Message],
        template: Mapping[str, Any],
        full: str | None,
        *,
        prompt: bool = False,
    ) -> Marks | None:
        source = self.text_of(template)
        if source not in self._marked:
            try:
                self._marked[source] = MarkedTemplate(source)
            except ValueError:
                self._marked[source] = None
        marked = self._marked[source]
        if marked is None:
            return None
        variables = {"tools": None, "documents": None, **self._tokenizer.special_tokens_map, **self._arguments}
        marks = marked.render(messages, {**variables, **template, "add_generation_prompt": prompt})
        if marked.dated:
            self.notes.add(
                "the chat template writes today's date, so that the same row gets other tokens tomorrow: "
                "fix it with --chat-template-kwargs"
            )
        return None if marks is None or (full is not None and marks.text != full) else marks

    def _generation_blocks(self, marks: Marks, wanted: Sequence[int]) -> list[Span]:
        """The template says itself what the model writes; of other turns than the wanted ones it is left out."""
        chunks = [marks.chunk(at) for at in wanted]
        inside = [
            (start, stop)
            for start, stop in marks.generations
            if any(chunk is not None and chunk[0] <= start < chunk[1] for chunk in chunks)
        ]
        if None in chunks:
            raise RowError(_HIDDEN.format(at=wanted[chunks.index(None)]))
        return join([span for span in inside if span[0] < span[1]])

    def _prompt(
        self, messages: Sequence[Message], at: int, template: Mapping[str, Any], known: dict[str, str | None]
    ) -> str | None:
        """The generation prompt in the place of message `at`, None where it cannot be told; kept by the role before."""
        before = messages[:at] or [{"role": "user", "content": WORD}]
        role = str(before[-1]["role"])
        if role not in known:
            try:
                without, whole = self.render(before, template), self.render(before, template, prompt=True)
            except RowError:
                known[role] = None
            else:
                known[role] = (
                    whole[len(without) :] if whole.startswith(without) else self._behind(before, template, whole)
                )
        return known[role]

    def _behind(self, before: Sequence[Message], template: Mapping[str, Any], whole: str) -> str | None:
        """What the template writes behind its loop: it may end a text without generation prompt in another way."""
        marks = self._marks(before, template, whole, prompt=True)
        return None if marks is None or marks.loop_end is None else whole[marks.loop_end :]

    def _by_prefix(self, messages: Sequence[Message], at: int, template: Mapping[str, Any], full: str) -> Span:
        """Borders of a turn from renderings of what comes before it and of what ends with it."""
        start = stop = -1
        if at:
            prompt = self._try(messages[:at], template, prompt=True)
            start = len(prompt) if prompt and full.startswith(prompt) else -1
        if start < 0:  # the prompt opens a block that the turn does not have: look for the content itself
            head, found, _ = self._try(_plainly(messages, [at]), template).partition(WORD)
            start = len(head) if found and full.startswith(head) else -1
        if at == len(messages) - 1:
            stop = len(full)
        else:
            through = self._try(messages[: at + 1], template)
            stop = len(through) if through and full.startswith(through) else -1
        if not 0 <= start <= stop:
            raise RowError(_HIDDEN.format(at=at))
        return start, stop

    def _try(self, messages: Sequence[Message], template: Mapping[str, Any], *, prompt: bool = False) -> str:
        try:
            return self.render(messages, template, prompt=prompt)
        except RowError:
            return ""


def _swallowed(marks: Marks, messages: Sequence[Message], at: int) -> bool:
    """What follows turn `at` up to the next one may stand in its chunk: a message that says something has none."""
    for index in range(at + 1, len(messages)):
        if messages[index]["role"] == "assistant":
            return False
        chunk = marks.chunk(index)
        if _said(messages[index]) and (chunk is None or not marks.text[slice(*chunk)].strip()):
            return True
    return False


def _said(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = content[0]["text"]
    return content.strip() if isinstance(content, str) else ""


def _in_parts(message: Message) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _left_out(message: Message, full: str) -> bool:
    """Nothing of what the message says, reasoning aside, stands in the rendering `full`."""
    said = _said(message)
    forms = (
        said,
        said.split("</think>")[-1].strip(),
        json.dumps(said)[1:-1],
        json.dumps(said, ensure_ascii=False)[1:-1],
    )
    return not any(form in full for form in forms)


def _plainly(messages: Sequence[Message], turns: Sequence[int]) -> list[dict[str, Any]]:
    """`messages` with a word instead of what was said and thought in `turns`."""
    out = [dict(message) for message in messages]
    for at in turns:
        in_parts = isinstance(out[at].get("content"), list)
        out[at].update({key: WORD for key in ("content", *REASONING) if out[at].get(key) or key == "content"})
        out[at] = _in_parts(out[at]) if in_parts else out[at]
    return out


def _probe_call(*, as_text: bool, null: bool) -> dict[str, Any]:
    arguments: Any = {f"{WORD}key": f"{WORD}value"}
    function = {"name": f"{WORD}nam", "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"id": f"{WORD}nam", "type": "function", "function": function}
    return {"role": "assistant", "content": None if null else "", "tool_calls": [call]}


def _renders_call(text: str) -> bool:
    """The made-up call is there, its arguments neither as Python writes them nor as text inside text."""
    garbled = re.search(rf"'{WORD}key'|\\\"{WORD}key|None", text)
    return f"{WORD}nam" in text and f"{WORD}key" in text and f"{WORD}value" in text and not garbled


def _call_in_form(at: int, call: Mapping[str, Any], form: Form) -> dict[str, Any]:
    function = dict(call["function"])
    arguments = function["arguments"]
    if form.arguments_as_text and not isinstance(arguments, str):
        function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    elif not form.arguments_as_text and isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            function["arguments"] = None
        if not isinstance(function["arguments"], dict):
            raise RowError(f"message {at}: arguments of a tool call are text that is not a JSON object")
    return {**call, "function": function}
