"""From the user's command line to that of a node's client: without what is the driver's, with the node's number."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

__all__ = ["NODE", "child_arguments", "of_node"]

NODE = "{node}"
_BY_NODE = frozenset({"--server", "--scratch"})


def of_node(text: str, number: int) -> str:
    """`text` with the number of the node in place of ``{node}``."""
    return text.replace(NODE, str(number))


def child_arguments(
    command: click.Command, arguments: Sequence[str], *, without: Collection[str], number: int
) -> list[str]:
    """`arguments`, which `command` has taken, as they are but for the options `without` and their values.

    ``{node}`` in the values of --server and --scratch becomes `number`.
    """
    options = {name: each for each in command.params if isinstance(each, click.Option) for name in each.opts}
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*kept, word, *rest]
        name, equals, value = word.partition("=")
        option = options.get(name)
        if option is None:
            kept.append(word)
            continue
        words = [word]
        if equals:
            words = [name + equals + of_node(value, number) if name in _BY_NODE else word]
        elif _takes_next(option, rest):
            value = rest.pop(0)
            words.append(of_node(value, number) if name in _BY_NODE else value)
        if name not in without:
            kept += words
    return kept


def _takes_next(option: click.Option, rest: Sequence[str]) -> bool:
    """The next word is the value of `option`, by click's own rule for options whose value may be left out."""
    if option.is_flag or not rest:
        return False
    return not (isinstance(option.flag_value, str) and rest[0].startswith("-") and len(rest[0]) > 1)
