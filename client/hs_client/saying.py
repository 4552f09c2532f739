"""What the commands write for people: everything passes through here, for ids, paths and names may be anybody's."""

from __future__ import annotations

from typing import TextIO

import click

from hs_formats.printable import printable

__all__ = ["say"]


def say(text: str, *, err: bool = False, stream: TextIO | None = None) -> None:
    """Write `text` and a line feed to standard output, to standard error or to `stream`, flushed."""
    click.echo(printable(text), file=stream, err=err)
