"""The lines of a prompts file, split on LF and nothing else, with flat memory however long a line is."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from hs_client.input_files import InputFile, shown

__all__ = ["MAX_LINE_BYTES", "Line", "LineIndex", "read_lines", "shown"]

MAX_LINE_BYTES = 32 << 20
"""Longer lines are rejected: a million token ids take about 7 MB."""

_BOM = b"\xef\xbb\xbf"
_INDEX_LINES = 256


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank. `number` counts from 1; `data` is None where it was longer than the cap."""

    number: int
    data: bytes | None
    size_bytes: int


@dataclass(slots=True)
class LineIndex:
    """Where some lines of a file begin, so that it can be read from there: every so many lines, one is noted.

    Lines are counted by those before them, places are in bytes.
    """

    lines: array[int] = field(default_factory=lambda: array("Q"))
    places: array[int] = field(default_factory=lambda: array("Q"))

    def note(self, before: int, place: int) -> None:
        """A line begins at `place`, with `before` lines before it; called in ascending order."""
        if before >= (self.lines[-1] + _INDEX_LINES if self.lines else 0):
            self.lines.append(before)
            self.places.append(place)

    def before(self, line: int) -> tuple[int, int]:
        """The last one that was noted at or before that with `line` lines before it, as (lines before it, place)."""
        at = bisect_right(self.lines, line) - 1
        return (self.lines[at], self.places[at]) if at >= 0 else (0, 0)


def read_lines(
    source: InputFile,
    *,
    max_bytes: int = MAX_LINE_BYTES,
    start: tuple[int, int] = (0, 0),
    index: LineIndex | None = None,
) -> Iterator[Line]:
    """The lines of `source` without their ends; a byte-order mark, CRLF and blank lines are let pass.

    U+2028 and its like stay what they are: characters inside a JSON string.

    Args:
        source: the file.
        max_bytes: of a line that is given as it is.
        start: (lines before, place) of the first line, of an index of this file; only where it `may_be_entered`.
        index: told where lines begin.

    Raises:
        OSError: the file cannot be read; or `hs_client.input_files.DAMAGED`.
    """
    number, place = start
    with source.open(place) as file:
        while data := file.readline(max_bytes + 2):
            if index is not None:
                index.note(number, place)
            number += 1
            size = len(data)
            whole = data.endswith(b"\n")
            if not whole and size > max_bytes + 1:
                while rest := file.readline(1 << 20):
                    size += len(rest)
                    if rest.endswith(b"\n"):
                        break
            place += size
            if number == 1:
                data = data.removeprefix(_BOM)
            data = data.removesuffix(b"\n").removesuffix(b"\r")
            if len(data) > max_bytes:
                yield Line(number, None, size)
            elif data.strip():
                yield Line(number, data, size)
