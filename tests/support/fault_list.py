"""The list of faults, and what it takes to add one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from part_factory import Record

__all__ = ["RUN", "Fault", "Inject", "clean_copy", "collected_in", "pick"]

RUN = "0000abcd"

Inject = Callable[[Path, Sequence[Record]], str]


@dataclass(frozen=True)
class Fault:
    """A way to harm a dataset, and what must be found.

    Attributes:
        inject: harms the dataset at a path, whose records are given; returns what a finding must name: a sample id, a
            request, a file or a line.
        kinds: of the findings that may name it, at least one of which must.
    """

    name: str
    inject: Inject
    kinds: tuple[str, ...]


def clean_copy(clean: Path, to: Path) -> Path:
    """A copy to be harmed."""
    return Path(shutil.copytree(clean, to, symlinks=True))


def collected_in(faults: list[Fault]) -> Callable[..., Callable[[Inject], Inject]]:
    """A decorator ``fault(*kinds, name="")`` that adds what it decorates to `faults`, by default under its own name."""

    def fault(*kinds: str, name: str = "") -> Callable[[Inject], Inject]:
        def keep(inject: Inject) -> Inject:
            faults.append(Fault(name or inject.__name__.strip("_").replace("_", " "), inject, kinds))
            return inject

        return keep

    return fault


def pick(records: Sequence[Record], at_least: int = 40) -> int:
    """A sample of several parts that begins like others and is no repetition."""
    ids = [list(record.ids) for record in records]
    return next(
        at for at, own in enumerate(ids) if len(own) >= at_least and ids.count(own) == 1 and own[:3] == [1, 509, 7]
    )
