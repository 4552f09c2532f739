"""The cases: each a folder with a README and a module ``case`` that has what `Case` names."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any, Protocol, cast

__all__ = ["NAMES", "Case", "find_case"]

NAMES = (
    "throughput",
    "peers",
    "onpolicy",
    "equality",
    "stall",
    "client",
    "sending",
    "resume",
    "codec",
    "mover",
    "objectstore",
    "soak",
    "chaos",
    "reader",
    "scaling",
)


class Case(Protocol):
    """What a case's module offers. Importing it must be cheap: nothing beyond the standard library and ours.

    One whose runs add up also has ``merge(records)``: results that are alike, oldest first, as one.
    """

    QUESTION: str
    """One line for the list."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the case's own options."""
        ...

    def run(self, options: argparse.Namespace) -> Path:
        """Run it; returns the result file.

        Raises:
            HsError: it could not be run, or the run is invalid.
        """
        ...

    def table(self, record: dict[str, Any]) -> str:
        """A result as a Markdown table."""
        ...

    def plot(self, record: dict[str, Any], path: Path) -> None:
        """A result as a PNG."""
        ...


def find_case(name: str) -> Case:
    """The case called `name`, one of `NAMES`."""
    return cast("Case", importlib.import_module(f"benchmarks.{name}.case"))
