"""``failed/<run>.jsonl`` of a dataset: the rows of a run that failed, as they stand in the input, to be sent again."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from hs_client.errors import BadPrompts
from hs_client.input_files import DAMAGED
from hs_client.lines import read_lines
from hs_client.plan import Plan

__all__ = ["failed_file", "write_failed"]


def failed_file(dataset: Path, run: str) -> Path:
    """Where the failed rows of a run lie."""
    return dataset / "failed" / f"{run}.jsonl"


def write_failed(plan: Plan, wheres: Collection[str], path: Path) -> int:
    """Copy the rows at `wheres` (``file:line``) of the input to `path`; returns how many there are.

    Their lines are kept to the byte, so that they name the same samples with the same content.

    Raises:
        BadPrompts: a file has changed meanwhile, or cannot be read.
        OSError: `path` cannot be written.
    """
    wanted = set(wheres)
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    count = 0
    try:
        with temporary.open("wb") as output:
            for file in plan.files:
                file.check_unchanged()
                try:
                    for line in read_lines(file, max_bytes=plan.max_line_bytes):
                        where = f"{file.name}:{line.number}"
                        if where in wanted and line.data is not None:
                            wanted.discard(where)
                            output.write(line.data + b"\n")
                            count += 1
                except DAMAGED as error:
                    raise BadPrompts(path=file.name, reason=error) from None
                file.check_unchanged()
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count
