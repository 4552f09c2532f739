"""How far a seed has come: kept in a file after each round, so that runs add up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hs_formats.durable import replace_file
from hs_formats.errors import UsageError

__all__ = ["Progress"]

_FORMAT = "hs-chaos-progress"


@dataclass(slots=True)
class Progress:
    """What all rounds of a seed have shown so far.

    Attributes:
        kills: programs killed with SIGKILL, by name.
        events: what happened, by kind.
        endings: clients that ended by themselves, by exit code.
        rows: samples that had to come out right, and did unless `problems` says otherwise.
        rounds: number, kills, rows, orphans, seconds of each.
        commits: of the code, in the order in which it ran.
    """

    seed: int
    kills: dict[str, int] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    orphans: int = 0
    largest_difference: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def killed(self) -> int:
        """Programs killed in all."""
        return sum(self.kills.values())

    def add(
        self, *, kills: Mapping[str, int], events: Mapping[str, int], endings: Mapping[str, int], rows: int,
        orphans: int, largest: float, seconds: float, problems: list[str],
    ) -> None:  # fmt: skip
        """Count one more round."""
        for total, more in ((self.kills, kills), (self.events, events), (self.endings, endings)):
            for name, count in more.items():
                total[name] = total.get(name, 0) + count
        self.rows += rows
        self.orphans += orphans
        self.largest_difference = max(self.largest_difference, largest)
        self.rounds.append([len(self.rounds), sum(kills.values()), rows, orphans, round(seconds, 1)])
        self.problems += problems

    def save(self, path: Path) -> None:
        """Replace the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps({"format": _FORMAT, **asdict(self)}, indent=1).encode() + b"\n", mode=0o644)

    @classmethod
    def load(cls, path: Path, seed: int) -> Progress:
        """The progress of `seed`; none where there is no file.

        Raises:
            UsageError: the file is of another seed or none of ours.
        """
        try:
            data = json.loads(path.read_bytes())
        except FileNotFoundError:
            return cls(seed)
        except ValueError as error:
            raise UsageError(f"{path}: {error}\n  remove it, or name another with --progress") from None
        if not isinstance(data, dict) or data.pop("format", None) != _FORMAT or data.get("seed") != seed:
            raise UsageError(f"{path} is not the progress of seed {seed}\n  name another with --progress")
        return cls(**data)
