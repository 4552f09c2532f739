"""What the commands write for people: everything passes through here, for ids, paths and names may be anybody's."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TextIO

import click

from hs_formats.printable import printable

__all__ = ["going_on", "say"]

_FOR_A_WHILE = (errno.ENOSPC, errno.EDQUOT)


def say(text: str, *, err: bool = False, stream: TextIO | None = None) -> None:
    """Write `text` and a line feed to standard output, to standard error or to `stream`, flushed."""
    click.echo(printable(text), file=stream, err=err)


@contextlib.contextmanager
def going_on(stream: TextIO) -> Iterator[None]:
    """For what works on whether or not it is read: where `stream` takes nothing, what a block writes to it is lost.

    Where its reader is gone for good, as that of a closed pipe or terminal, all that follows is thrown away.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FOR_A_WHILE:
            with contextlib.suppress(OSError, ValueError):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)
