"""The lines of a prompts file, split on LF and nothing else, with flat memory however long a line is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hs_client.input_files import InputFile, shown

__all__ = ["MAX_LINE_BYTES", "Line", "read_lines", "shown"]

MAX_LINE_BYTES = 32 << 20
"""Longer lines are rejected: a million token ids take about 7 MB."""

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank. `number` counts from 1; `data` is None where it was longer than the cap."""

    number: int
    data: bytes | None
    size_bytes: int


def read_lines(source: InputFile, *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """The lines of `source` without their ends; a byte-order mark, CRLF and blank lines are let pass.

    U+2028 and its like stay what they are: characters inside a JSON string.

    Raises:
        OSError: the file cannot be read; or `hs_client.input_files.DAMAGED`.
    """
    number = 0
    with source.open() as file:
        while data := file.readline(max_bytes + 2):
            number += 1
            size = len(data)
            whole = data.endswith(b"\n")
            if not whole and size > max_bytes + 1:
                while rest := file.readline(1 << 20):
                    size += len(rest)
                    if rest.endswith(b"\n"):
                        break
            if number == 1:
                data = data.removeprefix(_BOM)
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            if len(data) > max_bytes:
                yield Line(number, None, size)
            elif data.strip():
                yield Line(number, data, size)
