"""Where in a rendered conversation each message begins: the chat template itself is made to say it.

Into every loop of the template that writes something, a call is put at the start of the body that is handed the loop's
variable; where that is a message, the call writes a mark. ``{% generation %}`` blocks get marks at both ends. The text
without the marks must equal what the template renders by itself, or the marks count for nothing: whoever uses them
compares. Unlike rendering ever longer prefixes this holds also for templates that render a turn differently when
others follow it, such as those that drop the reasoning of earlier turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["MarkedTemplate", "Marks"]

_BARS = "\U000ffff0\U000ffff1\U000ffff2\U000ffff3"
"""Characters for private use that may enclose a mark; one that the conversation does not hold is taken."""

_MESSAGE, _GENERATION, _END = "hs_mark_message", "hs_mark_generation", "hs_mark_end"


@dataclass(frozen=True, slots=True)
class Marks:
    """A rendering and the marks in it. All positions are characters of `text`.

    Attributes:
        text: without marks.
        messages: index of a message → where the last loop that writes begins with it.
        loop_end: where that loop has ended, None where it never does.
        generations: [start, stop) of ``{% generation %}`` blocks, in order.
    """

    text: str
    messages: Mapping[int, int]
    loop_end: int | None
    generations: Sequence[tuple[int, int]]

    def chunk(self, message: int) -> tuple[int, int] | None:
        """[start, stop) of what is written for one message; None where that cannot be told."""
        start = self.messages.get(message)
        if start is None:
            return None
        later = [at for index, at in self.messages.items() if index > message]
        if any(at < start for at in later) or any(at > start for index, at in self.messages.items() if index < message):
            return None
        return start, min(later, default=len(self.text))


class _Generation(Extension):
    """``{% generation %}`` as marks around its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body between two marks."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        start, stop = (_call(_GENERATION, nodes.Const(end), line) for end in (0, 1))
        return [start, *body, stop]


class MarkedTemplate:
    """A chat template that marks where messages begin.

    Args:
        source: of the template, as transformers takes it.

    Attributes:
        dated: some rendering has asked for the date.

    Raises:
        ValueError: the template cannot be parsed.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = self._now
        self.dated = False
        try:
            tree = environment.parse(source)
            loops = [loop for loop in tree.find_all(nodes.For) if isinstance(loop.target, nodes.Name) and _writes(loop)]
            for loop in loops:
                loop.body.insert(0, _call(_MESSAGE, nodes.Name(loop.target.name, "load"), loop.lineno))  # type: ignore[attr-defined]
            _mark_ends([tree, *tree.find_all(nodes.Node)], loops)
            tree.set_environment(environment)
            self._template = environment.from_string(tree)
        except (TemplateError, RecursionError) as error:
            raise ValueError(str(error)) from None

    def _now(self, form: str) -> str:
        self.dated = True
        return datetime.now().strftime(form)  # noqa: DTZ005 - as transformers has it

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> Marks | None:
        """Render and read the marks; None where the template fails or garbles them."""
        held = json.dumps([messages, variables], ensure_ascii=False, default=str)
        bar = next((char for char in _BARS if char not in held), "")
        if not bar:
            return None
        places = {id(message): index for index, message in enumerate(messages)}

        def mark_message(item: object) -> str:
            index = places.get(id(item))
            return "" if index is None else f"{bar}m{index}{bar}"

        calls = {
            _MESSAGE: mark_message,
            _GENERATION: lambda end: f"{bar}g{end}{bar}",
            _END: lambda _: f"{bar}e0{bar}",
        }
        try:
            marked = self._template.render({**variables, "messages": messages, **calls})
        except Exception:  # noqa: BLE001 - a template is somebody's program and may raise anything
            return None
        return _read_marks(marked, bar)


def _writes(loop: nodes.For) -> bool:
    return any(isinstance(node, nodes.Output) or node.find(nodes.Output) for node in loop.body)


def _mark_ends(parents: list[nodes.Node], loops: list[nodes.For]) -> None:
    """Put a mark behind each of the loops."""
    for parent in parents:
        for field in parent.fields:
            body = getattr(parent, field)
            if isinstance(body, list) and any(node in loops for node in body if isinstance(node, nodes.For)):
                marked = [
                    (node, _call(_END, nodes.Const(0), node.lineno)) if node in loops else (node,) for node in body
                ]
                body[:] = [node for pair in marked for node in pair]


def _call(name: str, argument: nodes.Expr, line: int) -> nodes.Output:
    call = nodes.Call(nodes.Name(name, "load"), [argument], [], None, None)
    return nodes.Output([call]).set_lineno(line, override=True)  # type: ignore[return-value]


def _read_marks(marked: str, bar: str) -> Marks | None:
    text: list[str] = []
    messages: dict[int, int] = {}
    generations: list[tuple[int, int]] = []
    opened: int | None = None
    at = length = 0
    loop_end: int | None = None
    for match in re.finditer(f"{bar}([emg])([0-9]+){bar}", marked):
        piece = marked[at : match.start()]
        text.append(piece)
        length += len(piece)
        at = match.end()
        number = int(match[2])
        if match[1] == "m":
            messages[number], loop_end = length, None
        elif match[1] == "e":
            loop_end = length if loop_end is None else loop_end
        elif number == 0:
            opened = length
        elif opened is not None:
            generations.append((opened, length))
            opened = None
    text.append(marked[at:])
    plain = "".join(text)
    return None if bar in plain or opened is not None else Marks(plain, messages, loop_end, generations)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
