"""Which nodes may be asked, and which were asked too often. Pure logic but for the clock that it is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hs_client.cluster.fleet import RayNode

__all__ = ["Roster"]

_FAILURES = 3
_PAUSE_S = 5.0
_HOPELESS = (2, 3)
"""Exit codes that a repetition does not mend: wrong use, refused by a check."""


@dataclass(slots=True)
class _Trouble:
    failures: int = 0
    not_before_s: float = 0.0
    code: int = 0
    reason: str = ""
    out: bool = False


class Roster:
    """What is known of the nodes of the cluster.

    Args:
        wanted: how many are to take part; None: all.
    """

    def __init__(self, wanted: int | None) -> None:
        self._wanted = wanted
        self._known: dict[str, RayNode] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._living: list[RayNode] = []

    def saw(self, living: Sequence[RayNode]) -> None:
        """These live now."""
        self._living = list(living)
        self._known.update((node.id, node) for node in living)

    @property
    def wanted(self) -> int:
        """How many are to take part: as many as asked for, else all that live and are not left out."""
        return len(self.usable) if self._wanted is None else self._wanted

    @property
    def living(self) -> list[RayNode]:
        """Those that live, left out or not."""
        return list(self._living)

    @property
    def usable(self) -> list[RayNode]:
        """Those that live and are not left out."""
        return [node for node in self._living if not self._at(node).out]

    def candidates(self, busy: Collection[str], at_s: float) -> list[RayNode]:
        """Nodes to ask now, the best first; `busy`: ids of those that take part already."""
        found = [node for node in self.usable if node.id not in busy and self._at(node).not_before_s <= at_s]
        return sorted(found, key=lambda node: self._at(node).failures)

    def failed(self, node: RayNode, *, code: int, reason: str, progress: bool, at_s: float) -> bool:
        """It has failed with this exit code; `progress`: after it had brought rows to an end. True: it is left out."""
        trouble = self._at(node)
        trouble.failures = 1 if progress else trouble.failures + 1
        trouble.code, trouble.reason = code, reason
        trouble.not_before_s = at_s + _PAUSE_S * trouble.failures
        trouble.out = code in _HOPELESS or trouble.failures >= _FAILURES
        return trouble.out

    @property
    def reasons(self) -> list[tuple[str, int, str]]:
        """Name, exit code and reason of each node that has failed last time."""
        return [(self._known[key].name, each.code, each.reason) for key, each in self._trouble.items() if each.reason]

    def _at(self, node: RayNode) -> _Trouble:
        return self._trouble.setdefault(node.id, _Trouble())
