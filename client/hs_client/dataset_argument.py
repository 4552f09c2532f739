"""The argument DATASET of commands: a folder, or the URL of a dataset in an object store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from hs_formats.errors import UsageError
from hs_formats.location import Location, ObjectUrl, parse_location

__all__ = ["DatasetArgument", "LocalFolder", "local_only"]


class DatasetArgument(click.ParamType[Location]):
    """Converts to a `Location`."""

    name = "dataset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Location:
        del param, ctx
        return value if isinstance(value, (Path, ObjectUrl)) else parse_location(value)


class LocalFolder(click.Path):
    """A folder that is made here: URLs are refused, which would be taken for relative paths."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        if "://" in os.fspath(value):
            self.fail(f"{os.fspath(value)} is a URL, and what is made here is a folder on a disk", param, ctx)
        return super().convert(value, param, ctx)


def local_only(dataset: Location, what: str) -> Path:
    """`dataset`, if it is a folder.

    Raises:
        UsageError: it is a URL; `what` says which command does not take one.
    """
    if isinstance(dataset, Path):
        return dataset
    raise UsageError(f"{what} changes files in place and takes no {dataset.scheme}:// dataset: copy it to a disk first")
